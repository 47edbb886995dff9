"""Layers and models on nodes and edges, independent of how they are trained (layer 2 of the architecture)."""

from typing import TYPE_CHECKING

from outgrow.core.block import Block as Block
from outgrow.core.deprecation import renamed_names as _renamed_names
from outgrow.nn.attention import GATConv as GATConv
from outgrow.nn.bilinear_decoders import Bilinear as Bilinear
from outgrow.nn.bilinear_decoders import ComplEx as ComplEx
from outgrow.nn.compgcn import CompGCN as CompGCN
from outgrow.nn.compgcn import CompGCNConv as CompGCNConv
from outgrow.nn.compgcn import ComposedDistMult as ComposedDistMult
from outgrow.nn.convolution import CommNetConv as CommNetConv
from outgrow.nn.convolution import GCNConv as GCNConv
from outgrow.nn.convolution import SAGEConv as SAGEConv
from outgrow.nn.convolution import SAGEMaxConv as SAGEMaxConv
from outgrow.nn.decoder import Decoder as Decoder
from outgrow.nn.decoder import DistMult as DistMult
from outgrow.nn.decoder import Dot as Dot
from outgrow.nn.decoder import ProductDecoder as ProductDecoder
from outgrow.nn.decoder import QueryDecoder as QueryDecoder
from outgrow.nn.decoupled import SIGN as SIGN
from outgrow.nn.decoupled import Decoupled as Decoupled
from outgrow.nn.decoupled import DecoupledGAT as DecoupledGAT
from outgrow.nn.distance_decoders import RotatE as RotatE
from outgrow.nn.distance_decoders import TransE as TransE
from outgrow.nn.edge_attention import GATv2Conv as GATv2Conv
from outgrow.nn.edge_attention import TransformerConv as TransformerConv
from outgrow.nn.edge_decoder import EdgeDecoder as EdgeDecoder
from outgrow.nn.edge_decoder import EdgeMLP as EdgeMLP
from outgrow.nn.edge_messages import EdgeConv as EdgeConv
from outgrow.nn.edge_messages import GINEConv as GINEConv
from outgrow.nn.edge_messages import NNConv as NNConv
from outgrow.nn.edge_models import GINE as GINE
from outgrow.nn.edge_models import EdgeNetwork as EdgeNetwork
from outgrow.nn.edge_models import GATv2 as GATv2
from outgrow.nn.edge_models import Transformer as Transformer
from outgrow.nn.encoder import AttentionScores as AttentionScores
from outgrow.nn.encoder import Encoder as Encoder
from outgrow.nn.encoder import LinearEncoder as LinearEncoder
from outgrow.nn.encoder import SequentialEncoder as SequentialEncoder
from outgrow.nn.epilogue import Epilogue as Epilogue
from outgrow.nn.exportable import ExportableModel as ExportableModel
from outgrow.nn.film import FiLMConv as FiLMConv
from outgrow.nn.gated import GGCNConv as GGCNConv
from outgrow.nn.gated import GGNNConv as GGNNConv
from outgrow.nn.gin import GINConv as GINConv
from outgrow.nn.hetero import HeteroConv as HeteroConv
from outgrow.nn.hetero_encoder import HeteroEncoder as HeteroEncoder
from outgrow.nn.hgt import HGTConv as HGTConv
from outgrow.nn.layer import Conv as Conv
from outgrow.nn.layer import ConvSpec as ConvSpec
from outgrow.nn.layer import Layer as Layer
from outgrow.nn.layer import NodeMessages as NodeMessages
from outgrow.nn.mlp_decoder import MLPDecoder as MLPDecoder
from outgrow.nn.model import Model as Model
from outgrow.nn.node_embedding import NodeEmbedding as NodeEmbedding
from outgrow.nn.nodewise import MLP as MLP
from outgrow.nn.nodewise import Embedding as Embedding
from outgrow.nn.nodewise import NodewiseConv as NodewiseConv
from outgrow.nn.projection import Projection as Projection
from outgrow.nn.propagation import AttentionPropagateConv as AttentionPropagateConv
from outgrow.nn.propagation import PropagateConv as PropagateConv
from outgrow.nn.propagation import RelationPropagateConv as RelationPropagateConv
from outgrow.nn.pyg import PyGConv as PyGConv
from outgrow.nn.relation_matrices import RGCNMatrixConv as RGCNMatrixConv
from outgrow.nn.relational import RGCNConv as RGCNConv
from outgrow.nn.relational import RGCNDiagonalConv as RGCNDiagonalConv
from outgrow.nn.stack import Stack as Stack
from outgrow.nn.to_hetero import to_hetero as to_hetero
from outgrow.nn.typed_linear import TypedLinear as TypedLinear
from outgrow.nn.typed_models import HGT as HGT
from outgrow.nn.typed_models import TypedRGCN as TypedRGCN
from outgrow.nn.zoo import GAT as GAT
from outgrow.nn.zoo import GCN as GCN
from outgrow.nn.zoo import GGCN as GGCN
from outgrow.nn.zoo import GGNN as GGNN
from outgrow.nn.zoo import GIN as GIN
from outgrow.nn.zoo import RGCN as RGCN
from outgrow.nn.zoo import SAGE as SAGE
from outgrow.nn.zoo import CommNet as CommNet
from outgrow.nn.zoo import FiLM as FiLM
from outgrow.nn.zoo import RGCNDiagonal as RGCNDiagonal
from outgrow.ops.aggregation.edge_attention import DotProductAttention as DotProductAttention
from outgrow.ops.aggregation.edge_attention import DynamicAttention as DynamicAttention
from outgrow.ops.aggregation.edge_outer import FeatureWeightedSum as FeatureWeightedSum
from outgrow.ops.aggregation.edge_relu import GineSum as GineSum
from outgrow.ops.aggregation.film import Film as Film
from outgrow.ops.aggregation.gated import Gated as Gated
from outgrow.ops.aggregation.max import Max as Max
from outgrow.ops.aggregation.relational import RelationScale as RelationScale
from outgrow.ops.aggregation.weighted_sum import WeightedSum as WeightedSum
from outgrow.ops.csc import destination as destination
from outgrow.ops.edge_weight import mean_weight as mean_weight
from outgrow.ops.edge_weight import symmetric_weight as symmetric_weight

if not TYPE_CHECKING:
    __getattr__ = _renamed_names(
        __name__,
        {
            "Chain": "SequentialEncoder",
            "Dense": "LinearEncoder",
            "Finish": "Epilogue",
            "Rows": "NodeMessages",
            "Scores": "AttentionScores",
            "Widths": "ConvSpec",
        },
    )


def __dir__() -> list[str]:
    # Neither submodules, which importing them leaves here, nor `TYPE_CHECKING`.
    return sorted(name for name, value in globals().items() if not name.startswith("_") and callable(value))
