"""Files that ``dgl.save_graphs`` of DGL 2.1.0 has written, compressed, and the graphs that they hold.

Made by::

    g = dgl.graph((torch.tensor([0, 1, 2, 2]), torch.tensor([1, 2, 0, 3])), num_nodes=5)
    g.ndata["feat"] = torch.arange(10.0).reshape(5, 2)
    g.ndata["label"] = torch.tensor([0, 1, 2, 0, 1])
    g.ndata["train_mask"] = torch.tensor([1, 1, 0, 0, 0]).bool()
    g.ndata["val_mask"] = torch.tensor([0, 0, 1, 0, 0]).byte()
    g.edata["weight"], g.ndata["other"] = torch.tensor([0.5, 1, 2, 3]), torch.ones(5)
    dgl.save_graphs("plain", g)
    dgl.save_graphs("csc", g, formats="csc")
    dgl.save_graphs("csr32", g.int(), formats=["csr", "coo"])
    dgl.save_graphs("two", [g, g])

and, of several types::

    none = torch.tensor([], dtype=torch.int64)
    h = dgl.heterograph(
        {
            ("author", "writes", "paper"): (torch.tensor([1, 0, 0]), torch.tensor([0, 2, 1])),
            ("paper", "cites", "paper"): (torch.tensor([2]), torch.tensor([0])),
            ("paper", "in", "venue"): (none, none),
        },
        num_nodes_dict={"author": 3, "paper": 4, "venue": 1},
    )
    h.nodes["paper"].data["feat"] = torch.arange(8.0).reshape(4, 2).half()
    h.nodes["author"].data["feat"] = torch.ones(3, 3).half()
    h.nodes["paper"].data["label"] = torch.tensor([0, 1, 1, 0])
    h.nodes["paper"].data["train_mask"] = torch.tensor([True, False, True, False])
    h.edges["writes"].data["weight"] = torch.tensor([1.0, 2.0, 3.0])
    dgl.save_graphs("typed", [h], {"glabel": torch.tensor([1])})
    dgl.save_graphs("joined", dgl.to_homogeneous(h))
"""

import base64
import zlib
from pathlib import Path

_FILES = {
    "plain": (
        "c-q}qeQZ-z6o0S#aB)GpWgr?78w24}vS`#2Bzq%b5M?W)!$DwMA%h`9EAG<~R>Clb446h>ahvVNU>|~1Q_N=Ks5&7A110;zVb-vr"
        "kReJ688H9Q+IQ|b&wFp_=Er~D?B(>{bMEh+@B7{|T6`~rvKItR3L8XKq@~U7CE*%H+4+#C(H@~?mi5bXBUJg2t=Fero2<*-"
        "XzN*{Q@_d6sAJ^CF?k>Em&Z^GTlY8R+jKlv^_<1IoIIVQp}ezVzgee+I4`W5w^HX@a6b9_hhaXD^9|^uNpcA|C%UYaoioza0=TCJ"
        "#r-r49JH7ApT5oH$xmbl*%j7Dgb+?gtLTR-jkQ+rBS_Rm@tY1a{?Hjl_dJyc_%oFIkHF7WAQzAGg0-"
        "t`yndvA=Aa4e^}F4fN@U*cX6rrM_QvV!WdC&B7cZTYM1Da#wPTE?(;VrtxqCn#$|pabuN`G{xBm+8DStGN$S0g6q(25-"
        "ARj=vbCnmYynPn}%uj_!biS&L;XYN$XByTcj6Z~apL~_!d)A!+|4iFkE8x2b2Y)<S|CW`Hw<_gzI_hab+Bb~x#&N*R_LCf+o8Yf!"
        "%gwyra=!j>sn)8;&xLg%4-"
        "5LSqx$ZCJ6C5Er>T$i!uhrqsXnDR(tKGvqfVT!NNg4CaqTKwk<06|iRGU$!gNk*y{^x|!7sDHfA_MIc{}M`6Xu?Z_EKDE?nJ7(!~"
        "m0@KL4)Dh@Z;w)lV4z{I6Al{!~AC?P5F?JSR=5vI<FbcQ7vT>+sBh^*La7EWCzR5s&b@rr%=mZ<XSYf_=!R{3QF$Wj#%HkVijo_<"
        "a5-VO8)8-w#bvKhpQ*H1=mfzwJtCwsUnmrggw?$~)4B;zRKs<Mc@6;u-LL2Kpu>trqHM<KFUxxm-SjzWN_-Bzp;n@|V_)d!u(N%m"
        "ec;G5wzKrSSPg)bec`@IzSl&o_(;@uIvUANq@~kBjFiKMH)UEe0OinI_ex(N6&=F^W&)P_<oXT1KAJ`B~XeH=(0O9FzF`qOCUM_o"
        "P+}{#F&ypnd1reP%E)zmuuH!(qJAu+BP%SzUGv3;y@wd4xyz??iZ&8-"
        "HOq8yF@3D|o*YTo&=ValaSsC3)I^w)5tqTz<XR%lbOnSJ}b#1yJ92K4O&Cm&`r8C|7!KQMr6*pEfGo55{`{>Z1T&qOsSxpy^$`4h"
        "nsT1Wf;(2KEE<$%q@`m^<#TpV8-"
        "0ZvH~1FYS97=PsOw(2q1HztJ#rd80qYJJ`KJc}MdA${nfkK|aww=Z$Mnk5rf5b9eUJYn0eSvjdqCmkBuJ*QobIss0GRel$CI9P}u"
        "8-40u%X$8;^gU8p3?*+SmWA|jyZHA9?V_aP+9&oRZ<yV*JM;pd5)QNeC@zQYaMLHMv)7UJ{{TCO0pr21TJ9^6iSIz^93-"
        "u#K>R&Y8Kz|zp<7319n&TwcofrJ+K_e%|@vja2<VAfH@w!oFqkb}8=>2^FJ7?9r=}ud*oAPT)dj{k|<PYrjbc%h<=ueVv#2=94Et"
        "1?=U|kA7uRGY4&ErjJ8-"
        "?$c(&JKnQNMD33j0S+Ok($fglGGGD*JvwKH&#&PW`VC^F{7|wBH&3wwXWAbEz9B^}msq^5H&}<?9i565=&Kvl!$&6*qxD6W59QC3"
        "($t0OZXl@cr8NBFstNiTcoaWY-YVk*}ElwAJjsw;~>WFIbi)q|o~WPt$Ro_`?0C-"
        "zPhLfRlc54Dyur?XF?<7{dGuEx8Wg5ycok&(2Dw-x~J5<V-sS_@p1L=QSS#oa=Rt#_{?Uof~Vs*L<-"
        "jiNBxmd~Fx&Bl9zuJ=Vll_8y4mI<GN30$;H6=^XP$R$nBS+RONlBEA>nRA0;RDc>GJ{ws5QFeiECW9-"
        "wI4<v7viv0BQ$Di(X=LJu{8gKcd;JM(eTbC13`%8lIJ(tnqI~3CLgL1zGs;S2Nqd7)jo@l=+eQzrNai77M)#AGwDqIkxi|zrW|2u"
        "<qL;Ayxp!}bYi2&oJ&L_*s|0(*Xcrp%+xW9=P`>s!jF(>+ZX>rl^@!(As)e!#c#oU!4KjiCjM@hjp$D3Qn!&H;hC`Eun*J9~*$Cl"
        "Ur6^zP%^p!X^6qQWmI})BfL2Tu9is7arM`^4xOp*gl_dQE@p#CwcMIKk=@kAbf<QdXGP%|UtlPMP-"
        "y+c<NZP{F0I#KxIqsuUZKUKE0AS-HRsr+t1J(AY{1jea0iU"
    ),
    "csc": (
        "c-q|<e@v8R`1_87D4c#UHQZ|6`Z3L%WA<Z*Qhcy1wSv=-"
        "kp|p}rx>UVPla@GOKHt8VHz=!I6wtaixwJK;!Rz;ReH?TsB!bOa#+(&#}v1W?tS0q`FP(K@S62k@A&rcywC3+@AH1&B{#Ic7)+nx"
        "Hz{l(Q~_#Z-iYP#b(ZY;i^>$`{YSfP1ZLIkqx&5n*QXAKaILOBmFVaJ+*{9}yaEkC-<?DCxHmrW9D(}Q%j0-"
        "EI`FrhIZFLN++OkI0z$U{zVn9%DINg3GG8R%2<J93zP{f(#}fQ-FO$c0=(7wPZ{H4jQU3T1#*cZyI54h3vO)m$wKR%(xKz8vO6^g"
        "OiedEKA2E91YX-"
        "}o%ChnH<mLOVl=7JY&t3eQz>of?^z5Q}9PreqC?Px^{I%Q9*)X38T)oYb9UbbagPgvP!Gs2Jf9|w$>JRpl7wfW@!Oh-Flx_ie-"
        "6PUbPc*=v{cg(d1HNxc&RO~R&iPoL>`jEODgz*=O8tz>+QjGq$osfonSM{p{WL%ETek@Qxj}C8%XZqAGb`V+^7U4wzD@u?EdWnlg"
        "nGl;t}%J!<9m}V%hh?pxs&_#rysXiN&UQVF63o_JWgGD^MefToMD|NPVN%?G1g!d?MKYNg7s_``_lq_Brn6C<*fgP^j;F|$@M@S?"
        "V6zXREQVrf_M=?)h#N(JRSYE)aVbDqpQ+6!+fG#R<l@71?c0IQY-KDiIc3JJ=qIiCGhOkQXxJ(k2Q^=KGfg(&~;Y-"
        "MydY5cnaul=u?beH!MINIQ@}A9aSMO{5&*C^N7eTtUaGb=Ur=TT?Th<2lN*DKjsO~3)TngJ;3=9#nsc-eq=Y%7a5(Y@b${ux;}9c"
        "*U!{n@&|$#FDk<R#eKxR8?I>tFKHUtzKJNNf7>)ZJ$*?_nBJ;R>R*T<CWgqxwNpG8@h;`}oH(NK{b|hm)&{z-?_qXdsOcB`8{!-"
        "<^|@JS_^4rYT-6&hghOKVIV?|FI&oJC?ltNd&G#3I+JN2}w^7KqDjz(lUy^{|J%`yzm^5owC@(6?mw%sW8#-"
        "SxhA8P5vbLRN_oFd4ZuUk*og92T2F$q!2jPljtE1#$nokWN=3jyNn|p!j!~47g<l8_$@}vCe{nutM;`V)4o@R3$;wx!kaz4n<dj}"
        "ZA{nTlvXUp?Z<@%vHzF)Y1q<Q95-Z>niM;ROQRxewZ=UkTQEOxETbFMY^9rzFQlTkN_OKTa~KVuF9-"
        "}FT0FUq}=DEc47dkpAp(mdC=z9G+<P3+#lzC+vxd`)HTv_CXS51vcBcZ^lGK+I6pZAyPEB8BR~yvj>Hf2hB*KRrgd%aZv?9JbKVT"
        "2s8r;Zh2_dk-!a>jwQ~npsQwT(QOc(eYBSE8kGqD!s=-KYFG8BB*0<KfK>Uy>!6a08YDgN~q5Y3HNp<Qa?}+lH@+Xy5Kyr)v&x`-"
        "{YNd?5oM?y#BVvKWSdtK;B)><N{KE1v=}-j+9^b0rCApJ^%&BzN2-"
        "`^8fOH(PPSxJ>BuCQ5Ui%G$&JjlKPR}6Xd?HgT8t8%XKu)9>|l*bd*^*oAiCpF(#JBD?V%$@-"
        "bmge=YILbx=BAcyIPpQTd+n@f2DleYQIjX+KPbebkS9-D94o_lh0*B}wWV*}uM;>WgHc`|fna;&7+uFAT1L|2T(B;QP#*JeK-"
        "5(6N{K+sUB*1%uaiq*J&F>RRbCv3Lu%Q@?ExzfX!E@xBu*f4I)hUNUqk(Q|QIQ@Hy9p&Ry*F5G`4A33*Zzf^ucKq1O)hItYMe}k!"
        "4=yzj2#P4~#gz5{t&hB^b#Odt5&SdW+xNpm5`ma<t1pn`4Me}nD>>G38D8sE$jV%9Qx9BqS!*`6?$N03o8}u9?UtAZXn@6#Y{Z@2"
        "{#XoCjD%Cp)89ssgq?zRb`88?k9-"
        "sfnGhOvr{^M_&Eq~=E`KMgJ5E*yA&@bO}$qnt*K|RMWpHm8T)p&o@Mw!du<kb;!`fub6!jy*gn?d^wzZv%K1NgrS7z2@i`3R>F-"
        "&qny2?PU;kltv`|4_eKnyjWUcK$1U5%NalC^*73u6$?l-K?7|s=++;9`8<;A1uv!M`7+N$J&Cs=~ScDVUAD=-"
        "lDEz$I8|Bq(<ex5epqlorU32i_BBQlt|vkk}P*RT%*}ANeMKKXp1C}e7owQ#~pe+p~o9~0_1x(C3M<S<a3JcyTQ3~MZPOs`OL#lZ"
        "8C3Fjx;xI*v=eH{>fAmb^Z+?V-v&"
    ),
    "csr32": (
        "c-q}qeQZ=k5P$FPS}(TBYlGNC6EA)Qtb{ZglWQpUwSpn2?SV&ALE1abL6M>a3$#|-"
        "i<C&PNR0|az<ya;S}=$Q0!BE2NQ?^C5ETp;Dt-h^Bv(?Q|HyeeJM+4`y|$q7A2#<o-"
        "QAhl`S|VZzL(z`dLmXlC2G@nBdQ}c(x1x^`zu@vX3eeFw72f-^)OnxZ99zb|FF3*p6DCfnhTkZ)7TF;bE>w!R-"
        "E5j26}?E4^Cs$T=)ApaUB!+m*sm6pxE~{J~W%nyRbj*$2+0lhwGXOUkdh#&TQj+U8^pE-"
        "o0nJJhfe)cs=6!KGaL{hc9z}iVOKce#Kc!5YpGxCdc9YmIgPh2ON#V=C^L*^L<}&y5^BmkGP)NB7f8Xp9A~l^PZ9T$^L>Biy@zbE"
        "zJd5qMwEK`g|un6we$X-"
        "wtIR6Z2`JoVlIToK|^!X7(Dehwv1pymWB7I(#1HT_|t1$n&JfiS(Cf5cng=_f7Rlx9H!=2#=Gmoz3goAj;_qo~gOp`FtP7ecW$c|"
        "FW_Mz(dx$2Fbo4%B_CV2e^E==~cIwZ(YH44%+ELdhBP+H?|E1mnS|Eo2<1=+ac{c6|X;?X>har1#w@f&4qEi@cNavy}~}DJWaUgk"
        "Ytb5;;Dc~ioZtr?3D4DgE&%~WzRy6zahQnrS;T&P@mSdA@+3im-0gW9He?sRzPt&_-"
        "&1a4_%nom3>C>B)QT~IiDKNkJoD4qR~f=@_e3NFz0DTPyAUU`A7S4bDOM>^mpIg&-"
        "34=<R2N2;d~HrO8%SH3K$nbe~OexU5blX4{b_4Vsdk~oGOBP*PXG=E9~1rvkU&GIMIHg{7}9J1v^rOd`3e1wlaMw&Js<`*9+@b=F"
        "S!H4EC}g3X;F1i116})DL@$0EgA>$=A0r#qe7%?UM_6^SR!44uE|LhO{&$ml=ZoGXGz24*AeOwT`%M`yAFaKjQ07-"
        "#j4W8~q%w;M^erK6ThUwT-o2X_Htur}|J-"
        "%*@qd9abKlBECq}gYyS6Yo&PW>c&&>l85}k8GIc(zZ>WzzvlZA&(Qu#vqWRK{`wRAe6;Gum9zHLqwxpQs7}P=ctqkpoO})9ts$lO"
        "Ygm8F&vAV;9?L9|>WjsX^2c{vnkw>#>p0Cq|EjyV-"
        "U!BLZ4ak3UYLD+s#+g)0S}#71Je1U)U&Ym#@@tys#F@`Z{V_IH``y(5KmU#Fm6Uya{H`0k9?DJxxFO!RIY4)jLtEf-"
        ">uYhL%<DtoUie7gK$Uv2=cYphX5ajqKEb+ojX?RQ0{?mep$@;?zb0!9^VM(n7aQ+f73v5nl?&P`I#Rc+tB>ko%52OLu5p3T0lPEl"
        ">4F9CEqixx}VPT7~6sOTjIn1Zlu{)k4gDir1ZnRxgW6jksg{-aX@*YdQ^e@)_#~0g7LaJ{5<yTX$QS@KcrS$@89CB*RHz-"
        "d*u6t8ptJId<S_gjsAM87~5Da=Qql(O8B~?GavX9Kd_JL1>N7(da)b#bL5Am86tJ{KMs`Y1-"
        "&1*{poyOy$9m>o{j<VziKD<s|oeHl=as3v;st2C`Wkl{5=8In}p+y?{@>fiLW>PF*sLz-CTcOw_K;)N%T1df7t(!=P~*k+D~<*8s"
        "E>t`L~08gZn$U{sWwvpK*HW-D0WVRAmFbr<ZI1yIauzpyEIEFB}<=@N;77{GmgM#m~`bi1m(W7{_T|I{(=C0*({kzCoZQx4M2d-"
        "=~PfSm8ymuLAvVsjKGqm1p_+9!7kaCHy`@<L1FnfnIF9G5jZMPVs!k^{s|@cBi%_J^!X}?2+($m-"
        "7C)ANiYhVI9GI*pct+GaT<G>WREp2!4?s?PJ7st}fxzP^#|XS@%AAsJS$H_(g~7T6tb{V*k06%u|(7^_<IZ4Q-"
        "5>Wl^=>0yTB({%DL)m&cOVlf?AD$XOE;TSHf3z9~^Vj@^RvrgNA%aw_hRs$V`vRp`>K8>*o=VZ-"
        "M}<#pk!lKnay8s2Wo)G$YGG&OXc%u13Phw%KbDH;PJc2OWjQJ^~fa#clO`Dm-"
        "z5~~sOc;O?1`cQ~h`YX$q`d?WxnoixR4>JU2=%P}!+`ssxf2BqjU&AZ?&j%{U!U!=>8UdTO5ymM63j_YDk=C#&0kkDuiv^HfW6i`"
        "9Ogt@#C!Bct*wwZmk>mn(zYz>q1r{%=s2VGMNx+gXuBv)kUNmfEhM|6yHe{Xu0GFZ~0s"
    ),
    "two": (
        "c-rk5e@xU>{QEtAc<WpqObxd-znV=Y=9sN@1i}}l<y^^WV5BK`8H!1HBQnSqSITmRNiEF@!~rP>YEe6zw1AtsY^(5?Ygu{ov~=3E"
        "PREpf(!KXSpYOf*;H3Psc=Njt@4e6OpWpA9)9iaNoIfXMQrMEAb^H@a1gfxqUR$}Suv$@GzpLL)U{T{fdVcubro5rZ-"
        "rCrdM`%yM-rvNayh6=z-"
        ">{1Eac`PEk3fCfg$cYI9q?V#=21Nyuy@qnvxMAhu%GbF9dsW8xw?dx0DFWBTNqwS`%cRD&}l}G>)?k4c3!>%_#%DpHHMFVK|9c{A"
        "+jO>`FUGJKb))IVx#gXM(wcshIiO~=raau?k%$O^5hlxsfyyo!@hX=qXItapF90EE7=cvnsOClKj`aloUo%m)46!ZOLBCGrw(-"
        "bJ_gg9#q))!HB=wWBR|GvFN2%?=jgo#^twm9M?PkNKLp(rKLB`NRGzT$_MHeYKRH^-"
        "y{ZfX9p1}+v$eAO5cqw<dB#8eKs@zN%C;>6e>d`hKjzlGXyfCpN_m|QdTIcVorQSA+F@n%h{xw9S)O_ALfy&v`rWr%Y$Sees0(>%"
        ";K$PH>u(frb%t@8JheyA$5=y&G#}Cb3dXZds$<9_c^UewVfh#3drpui#{>5$*95tzg1s0Q)ywuCfT~+$fPVVq%PJ#&DtE6+b%y>#"
        "x}r8Qo(jmBs8rc_rH>qC@jSJ1=_3U8U8xf6!+K=(p&F#fzvIrUEdDK0`~mS8+`A!9(SF^K!1QvpMD<M&;;0IK;rpRU>PLibY5mE?"
        "RNs!I#saQx2X!y~8~ud!g7Lw44{~}Wa`6oKK5iiV63okl`dPhgV@4sD&s1OX4+zm-WMt$ooa0{U9i;Q3vUOznCc>Eh+b-"
        "nm#jF*K@0(pzzX*cGLg<oxbZ@^hgZaDbpiqZ~UE`+EbNxLgcmD1HF~7miiBg`&3kjb%>>k&yO$9=c7<rEUVR1fDR|)Sm;%Mgc3rX"
        "#8-<7;c@V6=#o|G?HfbU+w<fKn|U{Ay^D$>_{z04l1FN;A+@`bGJeQZ7&edGG+xWuDFcU!Pe3=P4Egu4AbmHONB8-"
        "wV71?EHX8O9Ii`C*{%1pbJR^vBzO&Mf5P821wE>tJ7{m(c~lKU?=Ri065!$1~;rsB-"
        "zxmNFpB2dSU=l~)f%?h}oJ+&S9P4NsMqJ6)x-^3t>wMxWNS?CfmKr9eIzaRa-o-jVe)=m9S+gXxQO4`+z_hry3-"
        "xbKwuxs}Ts@{}sS(z$_ohx-8FwO0FRepn?wSeH0=j8(lv^iU(?HzO{W@<G4KORhiUUpJ6%QEswid}4<^(zK?*`RN18#kfH}nda8-"
        "q4jV1<?ut{o>GHhhcy2nAN|s~8{!ylhxc2Emk#?*fT=f*3GrDg?fv~3R1f5XS8^U0aRIq?4Q!8jk29hB)2aD9|IU^_s9)?r?+3b&"
        "lwYB)#@k1n^ZUj33%LN+cYj6WS`_^8HY3NBs65^Ife{z7Cbi{Ie4<hz*Dur<{X+A1Q~R{?wMhbWou}v6FYx=I67oos?7;Jn_72n&"
        "y($iX{m5UE=glr*-yuMUL&g5*WGc@)IgK9G?(Crc_Q1Y>d^Vjc4#=0R4zW*P+`a2;m1Ta-"
        "=WtH;X3iev^4kgzzrRte@b(g1!XNvuvHAw7KL=;-"
        "6Xf80FM~K{Ubf=_#dm>yr`GSFdRxJMee3<~{R`~s1bFcX^Pj$q&HKL0715zY-cu@5tO_?D5W3+U?}hnC{JQc6&6lvB<qgtphJF$T"
        "{lj^e=zBmZ#Lx3`CFK`-"
        "9OnCxS~jmiKRn0p*Gsj|`hx1%{bZP5rS(>0f0vn`&mdoUh3TD^!|bsowy^g=kn6g@^ayk_`6$P_`kL^4o!rCjr(pdagt-"
        "TO6!R?w?jM`&qkF_x-e>rAkiUp;mEPie7frvfr>Q8|`*ghaS8-Nw=G8L^$tTN#@|??Q_U#JmtAcXBrBGL+zaPZt%cIfb-Yn7IDxG"
        "mLv)Ok&?3fe8K{pQIf6icH$jKpRQ2ym(G=}(ws>Luw{)On@@{{@Ciu;HBV$b@77<+^pDoRVrZ^quFsRnZN#oV1EKj`a?&a&cXoX@"
        "Sl8Bf)$4pW5Q;8?6EcdmQ(me{ELM_-xq$&#|se22)hMv1L_jxk(Q;;e`z!z4M-"
        "G@>lxK=LuFM;>?N@kAbf<Oz`v)Z9q<<jRGI@6a!ltXo@JF<SWIhnHavFIBd*c=5241!FyMtOt(uz_A|qf9`=P^8W(?vx$@7cT+h3"
        "8)SEimj"
    ),
    "typed": (
        "c-"
        "q|<YiyHM^nRrq)uDWhha(}eJ_v{e7mZ1A!+l!@OoFW7Sc(d3C1snN*o+M}iL3#ZC`=iKR~&OMU}K;zaVQXl28fUdqYF_{X&5ME5H"
        "y7>Fn?(6ckemh?!9XV#remxEobMRbI(1md(Lgs8arkMv!?}2gaKj&usY)PQ9NB{T|8%DB_SK1=(6kBQMZS#AN-^~BNV39y7~-"
        "V$9bTA^$g3<-3a`hOQ;_2>ZfMtSle)QB!7+u^6h1X)DEPb)lbjY`BtE}{O|~+yWw0}&I~l-"
        "tR^ORYT{a|_rL|VAN}yxNqS%%_aD8*<S{Pj2l^G#A&k)9)+R9ymuuJCba^IGJ%GP+JL7kM%W&0m4yxbU5ILUy>lHTM&%9S(q4KI^"
        "e|k#}_1D(zPbXp8={!s25bN<w4*%8Ei~b^Lu&#lh+8&0J8^!gkDOJ=StS2AlWjDj?e3vP|2mH|*L_X@V0RA=LrSg7|`>y<~jjzA6"
        "eikQZv(8sYAM8`4dPcA{Gk!P3edHCUU&|OxLzc9G>BD_q)C2!KTl0>M&$lAgbu!qA`8sh4@(r*_W&4x4e8zG1d1e#|_fD?YpMP3!"
        ")AQ$pdm)1r;+VDO_J=v#J;OYWd-RB4j{%{0T8|iig86Kb>JI7%!M9>Ar44(QvHI)Rds#T|bULfIVN!nZToc??1^mUlAZ-"
        "V%ctr&mr^BZ!jQlAaU(s3xcQKy0&(R|0lK_7Vsj%@ybnH0G=lR78Ue<Bv?-hc7cprB(iTY4~+k~4e|4mZ<LGT3dy-"
        "=s<zgl)^XAYHTc6m7caY7yyAufDBG)etP-"
        "?yOl+&o(UZKLXPxO>|dj+cpx6W$lh59Yg%vm>6%r@!M%YHyq+SGYe*H>{k#kgI2Eul|eng1@K;>lfFNCJ(XsRNfr<e5bCM{)+Qr<"
        "d3X>`!+*7LrOw|z7OU_@_sWtC-~KMm9J04!Pc#;E_bnWGk5d~`A0u3()BWEg-"
        "s(1i45CT=Lk*9sB?gZdD#inj@?EcEqs09Ry*(yC9W3Ytq{o}sa{e+-aC_>lRW-~kHc|NaDUbJx%U41m0-"
        "jb=j{ibEWQTZzA!BQcxYk*_R~-"
        "ZMkLI~&*NCW0b~3L%$K~2Odsk$2>aW?Uqc@DpWORL3ZF;km?Ua<68Kl%3UeOf^WHv&aXn+o$rQOiDqKCZB=rjOL7Fc<vi3lj-"
        "#<OAV22OvN64H#H_Kh>E+J4)M&7_LwKcMRhF*}HI-S{z`{n}e0Qn%q(F^=`sh_J{-"
        "ROUoN;Wr)ItJPga?O<;v_4cx58g|hJ5fQ)q3FqB=~NHKRR;O~q5hiQ?1VwI50KaWu!oygeu>LdK)OcDa%A(LY)-"
        "mwv3C>D23(mR@c@UEj|RwNa4)=Xfv*AG4tUC)6GDCEOSG?Rx_;jbJ;;*l0P}+VC?4dD`+#$C9D65e)y%J{X)ON!ciH~YZQJR4`|B"
        "}MpLwi4Vtl>(#P@}K0gApkL-Xng{Pv(xV_Y9orTC9+Nu%<WQolgHT=#WYH<u=`cmpQWIw;0|f#>vWtWf!LtGBjg^YI?LtG8D7Lv0"
        "h!!TRg2ZKQfza~DzUm-N~H8b{AdO1z=+`c<I2M!ZPpj1%;yO6T<K*mkKRA+zcftn2qeZ|L3rXP93%wh$iwawm_yH-"
        "T^A=CuHweYBqYChZZ<!TDYcc}%%s#|8E|2K+l;w29j7Idz!5H=vKAUsk|9$5{NdTsH4JQ(hD1UAwtj<?Tc4gLUK!^G`o#$sJl>+8"
        "2Ek<Gyv3>^=s;{$R#6`nj=SKcgGgl(W1oV)MPBc^{kCU>~mI=Z9<6uG+!+)quE4@KIgYA%2$Q`M&qX`(}%8VtoV7^;~6k44>RV>t"
        "%8j{l2Vbs;}l#=HHozU!wbJs+j&B;3M{f+;~**8KXUW9~i~gXRa#VL+l^<#jZEp#c7Ql+k)DXfZQ!9))a%bNc^L79)JEwy(4h+O|"
        "$jyywt#?n-"
        "}8}&lLyowU792`f+|*qjdLJ^`Tr+BtG};N342C6g`IEq{fchLFcppj@RLU<p7z6*bwC&^+Zc#tosbm9Xc0s1<XT~AsOyBFs2wC90"
        ">QC%2-"
        "oiBI0BuLzIdkOQHEb6`KBI2kt*b|GV3!#F#4bFGC%BYUGY>j?&R(PnNk|rO{5)(`QnZ0lE`WFjf9R34EHCmbeO+=e^}xQ8buGibW"
        "alJ+ht@{NClBM&{i{njExP0$`TvnQJAfL?am_lguQu$ZQfN*f{)GxeN0PN(b}AWbF_4i2e@+Y3!ROO^cRxJi%2~TJUxW2F~O1xD8"
        "^ZdwH2#mS0s;Sn6JZB1?4woh)1~f0n>E4X*zKY^PxV"
    ),
    "joined": (
        "c-"
        "q}pdrX^E6u+fqYh=N1`06xfWNu+E7e<_dF!@Br&=~lbE$iGI#V48jgBWL6Or&lajlnUE5Hjf60xOT9BcWl#IaVKY^AAZ0|B!6Wy2"
        "KdJIg29$jf(s3J*V7zY3U^X<xR-p-"
        "g}<EbM84`^S%C}Na==95@8Fe0ce%aT`*Hih~34g3C^FGaAw<X?$eL5bEL@cYQ9eIdqJ+^@;zm?T7w|~dnZt|gA4Uv=w|mu^au1i-"
        "HZlWc562NK8D_8E{@TLFH3d);IeHg`aS>@SNg$nsxJ^n9_a<}<3WRs@@q*iD!iWTV`5y0M;PQVE?hx4Pwo0X$Hw7nI40tadl`=aP"
        "|YpcLA$8mgZv&w&!q>cJ@nIgRP-y}Li+^pGD-KUSIiUop}NKRy{SFazGKO*rMg_EJAr-BTl1Pvz#IKnAufXx_8np#qW6+otoPIIc"
        "WAvv4lUoTQ>7K^9`uC4zhXEygFZX>qe2`cj((KaJhz53nX*!R&9F7cVM_;GEI=JSjNX3-"
        "dw(V={wQu<$&Y?!Z`N^E*I3_npNJpI2inB<AoF1!NSwTQfd6DW!yo0tpkL0%DLe=20sD83Z)g6)JK5GeQexxkk4SyR0{Vi81IVF&"
        "GL`-"
        "PVC(A5eE%8xWq&r0U+^ckH^%92(f0y$byK}i*RuT;Z>(WB>>FsY*3QZ~>eiLfK8*E%eF)^RZmMhg&Sh;}cg=DWFTExaFU2R~rFJi"
        "M>H4v5r`1mSKk5nk`>B1Di^Wf3@F$zgg}6uId@;rgdQk4<M5(}^4HQ8tmf!CIjncs9eN=Dyo(~oN9{0G$@^&)*j~JflcXgVd?n!P"
        "D<##^!twLhVfv}(DOKoR36gEu?`8SY14)J*+(mQ7MOmpsWHNI&jVxMFB(9eUlWh7QSj!u}zRlm{v%6Y+aRnqs~BhRq=tVfUN=QS>"
        "$pg(gNJ2!9KM5(^`c*AY|0***mBL9s`#zkMxtU`Y03|qJ_t~63SJq|_@f8yi6A7;-ZY2{+Sf^(EV-"
        "*qjQ=MRoQMEkP^5?BK`1>xPle;nouoENM;pKFu)w1KOK4vU;`5oZGV<reFJKj*brIk_l5)D!B_;QcC{vHgqof8bl6!~8|Lr*lOAB"
        "Y>k5?t42#Jqp+7^uJE?@3cN}p5i_Td~LOUI=@j4<G}AStgq;j>XmdeeJhQRQ$2{QyyW+X`VUW*rpz}!Wqv&lO@9o4-"
        "=&^s1wI1xn3UB_>s3qn_0-nLVAZU@(!7Lv3`pmPA&-$Rn2%sjg?%s3wNu{+`FTa!2ZnQ~AE*cYl<NTVg8fJXT(R!40?&N0yp-"
        "49+xjQPB?9tJkPA!o6&`S<>hz)-F5%_1mslU^JwE^Uj6L+jZG`LHXiu#?A-"
        "v!9`K;efzs&Sv92mD;_b#ZLhfnXLagItj4S#17=7ss~D+<4_Yv>m6xT}4#S-"
        "1CkkMzFK_Y=uf)I#!Dex0H|?XSCOJ&Zn(qVW2IupeIX7=8B+sFyscZpNA#uk24Ld>6k@^u0bS0=wW{T>XUb^x{+ns}s1_dHMbuT|"
        "?6p&*==GU<c>IUdUhWRSgeVUI4GrSL<27g7^cg4$wY|afN}7eZ}xo%h?<l%H1i<yXqQ?!uLC*PB_PVdH!WSKgH^Ea60Dvi-7-"
        ";g7Mqw?=8rm=dBv%-wrn4oz@cSH~NR?c9?VHb(PK5dFpr$uG0G0H9Ww7qoe&mQNwjzFV=VVqE_}Uz;5-"
        "A%#Yw1W*_Y+FR*ujd})L1{yu!apTd0b^wsO<Sa0{j{q{9}x<`KU8P;2#P@js_b<aMvV$-189y+_nl>T=`UMOSYa&p?p-"
        "jMwLlkfF6M%3LQx!+Q%8lvAFN}Rr&NZt_Vch5rQq8Axn|BZ-aLkI`mVxa%Kfb~E|W-3GSFUUj+O;YDG#Hsk?1?n?O@+Rp#k-qq|-"
        "Yo5tBuf?69om*e>dn#*vqT>l@o171R>hNr3pFjPBneEB{{ja&ZHaLB7jec@eXDU+l*~EVqDZ{h*YNxw0`UHy"
    ),
}
NAMES = tuple(_FILES)


def bytes_of(name: str) -> bytes:
    """The content of a file."""
    return zlib.decompress(base64.b85decode(_FILES[name]))


def write_dgl_file(folder: Path, name: str) -> Path:
    """Write a file, with the suffix of DGL's own examples."""
    path = folder / f"{name}.bin"
    path.write_bytes(bytes_of(name))
    return path
