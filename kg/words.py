"""Word lists of the embedded reader: what English and documentation use without meaning a concept by it."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


STOP = _words("""
a about additional after again all along also among an and any appropriate arbitrary are arguments around array-like as associated at
available be because been before being below between both but by can certain common complex-valued convenience corresponding could
default deprecated desired dimensional do does during e.g each either element-wise equal equivalent etc every few first for from
functional given has have helper her his how i i.e if in into is it its last legacy like many may more most much multi multiple must
n-dimensional negative never new next no non non-negative nor not note now of off often old on once one one-dimensional only or other
our out over own passed per positive possibly real-valued related respectively resulting same satisfy satisfying see several since so
some still such suitable than that the their them then there these they this those three through to too two under until up up-to-date
upon useful very via vs was we well were what when where whether which while who whose will with within without would yet you your
""")
"""Words that end a noun phrase."""

VERBS = _words("""
add adds adjust allow allows append applied applies apply approximate approximates assert assign attempt based bind bound break build
builds calculate calculated calculates call called calls change check checks choose clip collect combine compare compute computed
computes computing consider construct constructed constructs contain containing contains convert converted converts copy count create
created creates define defined defines defining depend depending describe describing design designed determine determines determining
display divide draw draws drop encode ensure enter enumerate estimate estimates evaluate evaluated evaluates exist expand expect express
expressed extend extract factor fill filter find finding finds fit fits fitting fix follow following force form format generate
generated generates generating get gets give gives giving handle help hold holds implement implemented implementing implements include
including increase indicate infer initialize insert interpret inverse invert iterate join keep know known let list load locate look made
make makes making map mark match measure merge minimize modify move multiply need normalize obtain obtained open operate operates
operating pad parse pass perform performed performs plot point print process produce produced produces project provide provided provides
put raise randomly rank read record records recover reduce refer remove removed rename reorder repeat replace report represent
represented representing represents require reset reshape resize resolve restore return returned returning returns reverse rotate round
run sample save scale search see select set sets share shift show simplify solve solved solves solving sort specified specify split
stack start stop store subtract sum support supported swap take takes test transform transformed truncate try turn unpack update use
used uses using validate verify visit offer offers wait want wrap write yield yields
""")
"""Verbs (and forms of them) that summaries of functions use."""

ADJECTIVES = _words("""
asymmetric average binary bipartite bivariate circular closed complete complex connected continuous cosine cubic deep dense direct
directed discrete empty fast final finite flat fourier free gaussian hermitian high-order infinite initial inverse iterative joint
laplace large linear low-order maximal minimal multivariate natural normal orthogonal partial periodic random recursive regular sine
singular slow small smooth sparse spherical square strong symmetric undirected uniform univariate weak
""")
"""Words that lead noun phrases and do not end one."""

NOUNS_IN_AL_ING = _words("""
annealing averaging clustering coloring diagonal differential drawing embedding encoding exponential factorial filtering fitting hashing
integral interpretation interval labeling learning mapping matching numeral ordering padding polynomial pooling potential principal
processing programming pruning resampling residual ring routing sampling scaling scheduling signal smoothing spacing spanning string
thresholding total training trial tuning windowing
""")
"""Nouns with an ending that mostly marks adjectives and participles."""

EMPTY_HEADS = _words("""
argument case class data example instance kind library method module name object set thing type version way wrapper
""")
"""Nouns that name nothing by themselves, whatever stands before them."""

HEADS_LIKE_VERBS = _words("""
count design estimate filter fit map match plot point process rank sample score search sort sum test transform
""")
"""Verbs that are nouns too and may end a noun phrase."""

GENERIC = _words("""
algorithm application approach arg argument array attribute axis base basic behavior behaviour bool boolean callable case class code
collection component computation condition configuration content copy current data default definition detail dict dictionary different
dimension direct directory docstring element exact example expression feature field file fixed following form full function general
generic given global group high implementation index individual information input instance integer interface item keyword kind kwarg
length level library list local low main maximum mean method minimum mode model module multiple name new node note number numeric
numerical numpy object one operation option optional order original output package pair parameter part particular point possible
previous problem procedure process processing program property public python range real reference representation result routine scalar
scheme scipy second sequence series set shape simple single size solution source special specific standard state step string structure
style subset symbolic system table target technique term text theory time tool torch total true tuple type underlying unit usage user
utility valid value variable various vector version way whole width work
""")
"""Words too general to tell one concept from another (singular)."""

VAGUE = _words("""
api backend backends base basic classes common compat config constants core dask errors exceptions function functions generic helper
helpers implementation init interface internal main method methods misc module modules networkx numpy options package private python
pytorch scipy settings standard sympy testing tool tools torch types util utils version warnings
""")
"""Names of modules that say nothing about their topic."""

NOT_NOUN_START = _words("""
add adds all allow allows any are check checks compute computes computing convert converts create creates define defines determine each
establish every expand find generate generates get gets handle handles here how if implement implements is it make makes manage no
provide provides read reads represent represents return returns run runs set sets test use uses using we when write writes you
""")
"""Words with which a heading is no noun phrase."""

PROPER = _words("""
Bayes Bayesian Bernoulli Bessel Boolean Boruvka Cartesian Chebyshev Clifford Delaunay Euler Fourier Galois Gauss Gaussian Hamiltonian
Hermite Hermitian Hilbert Kronecker Kruskal Laguerre Laplace Legendre Lie Markov Pauli Prim Python Riemann Risch Taylor Unicode Voronoi
Wigner
""")
"""Names that keep their capital in a heading."""

DULL = _words("""
backend cli compat config deprecated dialects internal legacy private schemas server testing util utils version visualization
""")
"""Parts of module names whose contents serve the package, not its users."""

INVARIANT = _words("""
access address analysis apparatus axis basis bias bus calculus canvas census class compass corpus dynamics gas genetics graphics lens
loss mass mathematics mechanics modulus news nucleus pass physics process radius robotics series statistics status torus
""")
"""Nouns that end in s in the singular."""

WEAK_MODIFIERS = _words("""
actual big current different early enough entire exotic extensive external famous further general good great important individual kind
kinds large later latter main major modern modified new newer numerous original other particular popular previous real recent separate
several similar simple single small special specific specified standard suitable type types typical unusual usual variety various
well-known whole wide widely
""")
"""Modifiers that pick out instances, not kinds."""

EMPTY_GENERA = _words("""
amount anything area aspect being bit body branch case class collection degree element example fact feature field form genus
idea instance item kind lot manner matter means member name number one order pair part particular piece point portion
region result section series set side something sort species subset term thing type unit use variety version way word work
""")
"""Heads of definitions that name no class of things."""
