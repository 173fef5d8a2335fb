package cacerts

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// difference is a set that istiod takes and this package refuses, or the other way round.
type difference struct {
	// laxer is true if istiod refuses it.
	laxer  bool
	reason string
}

const (
	renewed = "istiod reads its own root from the Secret, and with it only certificate and key; mounted as a directory it needs all files. " +
		"Here the mounted Secret is how a mesh moves"
	revoked = "istiod does not start then. A list of revoked certificates must not stop the CA: it is not used, and reported as a problem"
)

// differences are all of them, by the names of sets and crlSets.
var differences = map[string]difference{
	"Ed25519":        {false, "proxies need not take such signatures"},
	"P-224":          {false, "verifiers of TLS 1.3 do not take the curve"},
	"P-521":          {false, "proxies need not take such signatures"},
	"RSA-1024":       {false, "the key can be broken"},
	"a weak root":    {false, "who breaks the key of one root can be every workload"},
	"no keyCertSign": {false, "verifiers refuse every leaf then; istiod issues them"},
	"URIs of another domain": {false,
		"name constraints that exclude the mesh's SPIFFE IDs make verifiers refuse every leaf; istiod issues them"},
	"DNS names of others": {false, "name constraints that exclude the ca's own DNS names make its agents refuse it"},
	"path length 0 above": {false, "istiod verifies its certificate as if that were a leaf; with a leaf below, the path is too long"},
	"for servers only":    {false, "clients' certificates do not verify then; istiod issues them"},
	"a foreign one":       {false, "a root with the SPIFFE ID of another trust domain would be trusted for this one"},
	"a leaf among roots":  {false, "it verifies nothing; a file with it was put together wrongly"},
	"half of two roots":   {false, "istiod goes on without the second one, and its workloads lose trust in others"},
	"leftovers in the chain": {false,
		"certificates of another set are how a half-replaced set looks; istiod sends them to all workloads"},
	"a self-signed foreign root": {false, "as leftovers in the chain"},
	"too many roots":             {false, "each proxy gets all of them; 100 are enough"},
	"two keys":                   {false, "istiod takes the first, whichever that is"},
	"no files":                   {false, "istiod makes a root of its own; here another signer does that, if an operator chooses it"},

	"no chain file":                 {true, "the certificate leads to a root by itself"},
	"chain in the certificate":      {true, "TLS servers have their chains so; istiod takes the first certificate and forgets the rest"},
	"key with its parameters":       {true, "`openssl ecparam -genkey` writes them"},
	"TLS Secret without its root":   {true, "a self-signed certificate is its own root"},
	"istio-ca-secret, empty roots":  {true, renewed},
	"istio-ca-secret, two files":    {true, renewed},
	"istio-ca-secret, renewed":      {true, renewed + ". istiod renews its certificate and leaves root-cert.pem as it was"},
	"istio-ca-secret, renewed late": {true, renewed + ". istiod renews its certificate and leaves root-cert.pem as it was"},

	"lists: malformed":   {true, revoked},
	"lists: one missing": {true, revoked},
}

// page is docs/reference/plugged-in-ca-differences.md.
func page() string {
	var b strings.Builder
	b.WriteString(`# Where a plugged-in CA is not istiod's

The signer ` + "`cacerts`" + ` takes the directories that istiod takes from ` + "`ROOT_CA_DIR`" + `, the mounted Secret ` + "`cacerts`" + `, and
refuses what it refuses, except for these differences. A test gives the same directories to both (` + "`ISTIO_BIN`" + `), and fails
for a difference that is not listed, and for a row that shows none. This page is generated from its table (` + "`make golden`" + `).

istiod reads the directory when it starts, and takes new files later if they lead to the same roots. This signer also
takes other roots, but signs with a certificate below a new root only when the mesh trusts that.

istiod gives its workloads every list of revoked certificates that it has taken. This signer leaves out lists that have
expired, because Envoy refuses every certificate of an authority whose list has, and reports them as a problem.
`)
	for _, side := range []struct {
		title string
		laxer bool
	}{{"Fairlead refuses, istiod takes", false}, {"istiod refuses, Fairlead takes", true}} {
		fmt.Fprintf(&b, "\n## %s\n\n| set | why |\n|---|---|\n", side.title)
		for _, name := range slices.Sorted(maps.Keys(differences)) {
			if d := differences[name]; d.laxer == side.laxer {
				fmt.Fprintf(&b, "| %s | %s. |\n", name, d.reason)
			}
		}
	}
	return b.String()
}

func TestPage(t *testing.T) {
	testkit.Golden(t, "../../../../../docs/reference/plugged-in-ca-differences.md", []byte(page()))
}
