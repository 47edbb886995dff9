"""Layers that know nothing but nodes and edges (layer 2)."""

from outgrow.nn.attention import GATConv as GATConv
from outgrow.nn.convolution import GCNConv as GCNConv
from outgrow.nn.convolution import SAGEConv as SAGEConv
from outgrow.nn.convolution import SAGEMaxConv as SAGEMaxConv
from outgrow.nn.layer import Conv as Conv
from outgrow.nn.layer import Finish as Finish
from outgrow.nn.layer import Layer as Layer
from outgrow.nn.layer import Projection as Projection
from outgrow.nn.layer import Rows as Rows
from outgrow.nn.layer import Widths as Widths
from outgrow.nn.model import Model as Model
from outgrow.nn.zoo import GAT as GAT
from outgrow.nn.zoo import GCN as GCN
from outgrow.nn.zoo import SAGE as SAGE
from outgrow.nn.zoo import Stack as Stack
