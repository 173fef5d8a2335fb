package held

import (
	"crypto"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
)

// keys of an authority with one intermediate between issuing certificate and root.
type keys struct{ root, middle, issuing crypto.Signer }

func TestUnsuited(t *testing.T) {
	p256 := keys{catest.Key(t), catest.Key(t), catest.Key(t)}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	testkit.NoError(t, err)
	names := Names{
		TrustDomain: spiffeid.RequireTrustDomainFromString("cluster.local"), DNS: []string{"ca.istio-system.svc", "istiod.istio-system.svc"},
		IPs: []net.IP{net.IPv4(10, 0, 0, 1)},
	}
	pathLen := func(n int) catest.Change {
		return func(c *x509.Certificate) { c.MaxPathLen, c.MaxPathLenZero = n, n == 0 }
	}
	uri := func(text string) catest.Change {
		return func(c *x509.Certificate) {
			u, err := url.Parse(text)
			testkit.NoError(t, err)
			c.URIs = []*url.URL{u}
		}
	}
	algorithm := func(a x509.SignatureAlgorithm) catest.Change {
		return func(c *x509.Certificate) { c.SignatureAlgorithm = a }
	}
	usage := func(u x509.KeyUsage) catest.Change { return func(c *x509.Certificate) { c.KeyUsage = u } }
	extended := func(u ...x509.ExtKeyUsage) catest.Change { return func(c *x509.Certificate) { c.ExtKeyUsage = u } }
	leaf := func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature }
	nameless := func(c *x509.Certificate) { c.Subject = pkix.Name{} }
	critical := func(c *x509.Certificate) {
		c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Critical: true, Value: []byte{5, 0}}}
	}
	constrain := func(change func(*x509.Certificate)) catest.Change {
		return func(c *x509.Certificate) { c.PermittedDNSDomainsCritical = true; change(c) }
	}
	permit := func(domains ...string) catest.Change {
		return constrain(func(c *x509.Certificate) { c.PermittedURIDomains = domains })
	}
	const root, middle, issuing = "root", "middle", "issuing"
	now := time.Now()
	expired, future := catest.Valid(now.Add(-time.Hour), now.Add(-time.Minute)), catest.Valid(now.Add(time.Hour), now.Add(2*time.Hour))

	for name, tc := range map[string]struct {
		keys
		root, middle, issuing catest.Change
		// blamed is the certificate of the first reason, and want a part of it; "" if the authority suits.
		blamed, want string
	}{
		"P-256":           {},
		"P-384":           {keys: keys{catest.Key(t), catest.Key(t), catest.CurveKey(t, elliptic.P384())}},
		"RSA-2048":        {keys: keys{catest.RSAKey(t, 2048), catest.Key(t), catest.RSAKey(t, 2048)}},
		"a root on P-521": {keys: keys{catest.CurveKey(t, elliptic.P521()), catest.Key(t), catest.Key(t)}},
		"RSA-1024": {keys: keys{catest.Key(t), catest.Key(t), catest.RSAKey(t, 1024)}, blamed: issuing,
			want: "subjectPublicKeyInfo: an RSA key of 1024 bits"},
		"a root of RSA-1024":               {keys: keys{catest.RSAKey(t, 1024), catest.Key(t), catest.Key(t)}, blamed: root, want: "RSA of 2048"},
		"P-224":                            {keys: keys{catest.Key(t), catest.CurveKey(t, elliptic.P224()), catest.Key(t)}, blamed: middle, want: "on P-224"},
		"P-521":                            {keys: keys{catest.Key(t), catest.Key(t), catest.CurveKey(t, elliptic.P521())}, blamed: issuing, want: "P-521, with which"},
		"Ed25519":                          {keys: keys{catest.Key(t), catest.Key(t), edwards}, blamed: issuing, want: "Ed25519"},
		"SHA-1":                            {issuing: algorithm(x509.ECDSAWithSHA1), blamed: issuing, want: "signatureAlgorithm: ECDSA-SHA1 can be forged"},
		"a root signed with SHA-1":         {root: algorithm(x509.ECDSAWithSHA1)},
		"no authority":                     {issuing: leaf, blamed: issuing, want: "basicConstraints: this is not the certificate of a certificate authority"},
		"no keyCertSign":                   {issuing: usage(x509.KeyUsageDigitalSignature), blamed: issuing, want: "keyUsage: "},
		"no key usage at all":              {issuing: usage(0)},
		"no subject":                       {issuing: nameless, blamed: issuing, want: "subject: is empty"},
		"a critical extension":             {middle: critical, blamed: middle, want: "1.2.3.4 is critical"},
		"path length 0":                    {issuing: pathLen(0), middle: pathLen(1), root: pathLen(2)},
		"path length 0 above":              {middle: pathLen(0), blamed: middle, want: "pathLenConstraint allows 0 authorities"},
		"path length 1 of the root":        {root: pathLen(1), blamed: root, want: "there are 2"},
		"expired":                          {issuing: expired, blamed: issuing, want: "validity: expired at"},
		"expired above":                    {middle: expired, blamed: middle, want: "replace it"},
		"an expired root":                  {root: expired, blamed: root, want: "validity: expired at"},
		"not valid yet":                    {issuing: future, blamed: issuing, want: "set the clock"},
		"its trust domain":                 {root: uri("spiffe://cluster.local"), issuing: uri("spiffe://CLUSTER.local")},
		"a URI that is no SPIFFE ID":       {issuing: uri("https://ca.example.org/")},
		"a foreign trust domain":           {issuing: uri("spiffe://elsewhere.org"), blamed: issuing, want: `trust domain "elsewhere.org", and this mesh is "cluster.local"`},
		"a root of a foreign trust domain": {root: uri("spiffe://elsewhere.org"), blamed: root, want: "subjectAltName"},
		"for servers only":                 {issuing: extended(x509.ExtKeyUsageServerAuth), blamed: issuing, want: "extendedKeyUsage: "},
		"for code only, above":             {middle: extended(x509.ExtKeyUsageCodeSigning), blamed: middle, want: "extendedKeyUsage: "},
		"for servers and clients":          {issuing: extended(x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth)},
		"for all":                          {issuing: extended(x509.ExtKeyUsageAny)},
		"constrained to the mesh": {issuing: permit("cluster.local", "other.org"), root: constrain(func(c *x509.Certificate) {
			c.PermittedDNSDomains = []string{"istio-system.svc"}
		})},
		"constrained to another domain":        {issuing: permit("elsewhere.org"), blamed: issuing, want: `nameConstraints: exclude spiffe://cluster.local`},
		"constrained to another domain, above": {middle: permit("elsewhere.org"), blamed: middle, want: "with constraints that permit it"},
		"constrained to subdomains":            {root: permit(".cluster.local"), blamed: root, want: "nameConstraints"},
		"excluded": {root: constrain(func(c *x509.Certificate) { c.ExcludedURIDomains = []string{"cluster.local"} }),
			blamed: root, want: "nameConstraints"},
		"one DNS name excluded": {issuing: constrain(func(c *x509.Certificate) { c.ExcludedDNSDomains = []string{"istiod.istio-system.svc"} }),
			blamed: issuing, want: "exclude istiod.istio-system.svc"},
		"DNS names not permitted": {issuing: constrain(func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"example.org"} }),
			blamed: issuing, want: "exclude ca.istio-system.svc"},
		"addresses not permitted": {issuing: constrain(func(c *x509.Certificate) {
			c.PermittedIPRanges = []*net.IPNet{{IP: net.IPv4(192, 168, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}}
		}), blamed: issuing, want: "exclude 10.0.0.1"},
		"an authority's own name excluded": {root: permit("cluster.local"), middle: uri("https://elsewhere.org/"), blamed: root, want: "elsewhere.org"},
	} {
		t.Run(name, func(t *testing.T) {
			k := p256
			if tc.keys.root != nil {
				k = tc.keys
			}
			only := func(c catest.Change) []catest.Change {
				if c == nil {
					return nil
				}
				return []catest.Change{c}
			}
			r := catest.NewCA(t, nil, k.root, only(tc.root)...)
			m := catest.NewCA(t, r, k.middle, only(tc.middle)...)
			i := catest.NewCA(t, m, k.issuing, only(tc.issuing)...)
			a := Authority{Certificate: i.Cert, Key: i.Key, Chain: []*x509.Certificate{m.Cert}, Roots: []*x509.Certificate{r.Cert}}
			found := a.Unsuited(names, now)
			if tc.want == "" {
				for _, u := range found {
					t.Error(u)
				}
				return
			}
			if len(found) == 0 {
				t.Fatal("suits")
			}
			where := map[*x509.Certificate]string{r.Cert: root, m.Cert: middle, i.Cert: issuing}[found[0].Certificate]
			if where != tc.blamed || !strings.Contains(found[0].Error(), tc.want) {
				t.Errorf("%s: %v", where, found[0])
			}
		})
	}
}

func TestUnsuitedParts(t *testing.T) {
	now := time.Now()
	root, other := catest.NewCA(t, nil, catest.Key(t)), catest.NewCA(t, nil, catest.Key(t))
	deep := []*catest.CA{root}
	for range 5 {
		deep = append(deep, catest.NewCA(t, deep[len(deep)-1], catest.Key(t)))
	}
	chain := func(n int) (c []*x509.Certificate) {
		for i := n - 1; i > 0; i-- {
			c = append(c, deep[i].Cert)
		}
		return c
	}
	roots := []*x509.Certificate{root.Cert}
	for name, tc := range map[string]struct {
		Authority
		want string
	}{
		"a root":             {Authority{Certificate: root.Cert, Key: root.Key, Roots: roots}, ""},
		"two roots":          {Authority{Certificate: root.Cert, Key: root.Key, Roots: []*x509.Certificate{other.Cert, root.Cert}}, ""},
		"another's key":      {Authority{Certificate: root.Cert, Key: other.Key, Roots: roots}, "is not that of its certificate"},
		"no root":            {Authority{Certificate: root.Cert, Key: root.Key}, "no root"},
		"a foreign root":     {Authority{Certificate: deep[1].Cert, Key: deep[1].Key, Roots: []*x509.Certificate{other.Cert}}, "none of the 1 roots"},
		"a gap in the chain": {Authority{Certificate: deep[3].Cert, Key: deep[3].Key, Chain: chain(2), Roots: roots}, "leads to none"},
		"four intermediates": {Authority{Certificate: deep[4].Cert, Key: deep[4].Key, Chain: chain(4), Roots: roots}, ""},
		"five intermediates": {Authority{Certificate: deep[5].Cert, Key: deep[5].Key, Chain: chain(5), Roots: roots}, "chain: 5 certificates"},
	} {
		found := tc.Unsuited(Names{TrustDomain: spiffeid.RequireTrustDomainFromString("cluster.local")}, now)
		switch {
		case tc.want == "" && len(found) > 0, tc.want != "" && (len(found) != 1 || !strings.Contains(found[0].Error(), tc.want)):
			t.Errorf("%s: %v", name, found)
		}
	}
}

func TestExpiring(t *testing.T) {
	now := time.Now()
	day := 24 * time.Hour
	for name, tc := range map[string]struct {
		root, issuing time.Duration // left
		life          time.Duration // of the issuing certificate
		want          int
	}{
		"nothing soon":          {1000 * day, 100 * day, 365 * day, 0},
		"last month":            {1000 * day, 29 * day, 365 * day, 1},
		"last fifth of 90 days": {1000 * day, 17 * day, 90 * day, 1},
		"before that":           {1000 * day, 19 * day, 90 * day, 0},
		"the root as well":      {2 * day, day, 365 * day, 2},
		"over":                  {1000 * day, -day, 365 * day, 0},
	} {
		root := catest.NewCA(t, nil, catest.Key(t), catest.Valid(now.Add(-3650*day), now.Add(tc.root)))
		issuing := catest.NewCA(t, root, catest.Key(t), catest.Valid(now.Add(tc.issuing-tc.life), now.Add(tc.issuing)))
		a := Authority{Certificate: issuing.Cert, Key: issuing.Key, Roots: []*x509.Certificate{root.Cert}}
		if found := a.Expiring(now); len(found) != tc.want {
			t.Errorf("%s: %v", name, found)
		}
	}
}
