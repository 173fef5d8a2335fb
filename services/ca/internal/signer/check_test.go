package signer

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/tokentime"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// newAuthority makes a root, or with a parent an intermediate, that is valid around now.
func newAuthority(t testing.TB, parent *catest.CA) *catest.CA {
	t.Helper()
	return catest.NewCA(t, parent, catest.Key(t), catest.Valid(now.Add(-time.Hour), now.Add(24*time.Hour)))
}

// sign signs a template, which gets a serial number if it has none.
func sign(t testing.TB, by *catest.CA, template *x509.Certificate) *x509.Certificate {
	t.Helper()
	copied := *template
	if copied.SerialNumber == nil {
		copied.SerialNumber = new(big.Int).Lsh(big.NewInt(0x5555), 100)
	}
	return by.Sign(t, &copied, copied.PublicKey)
}

func request(t testing.TB) *Request {
	t.Helper()
	id, err := url.Parse("spiffe://cluster.local/ns/shop/sa/web")
	if err != nil {
		t.Fatal(err)
	}
	extension, err := tokentime.Extension(now, "")
	if err != nil {
		t.Fatal(err)
	}
	return &Request{Template: &x509.Certificate{
		PublicKey: &catest.Key(t).PublicKey, URIs: []*url.URL{id}, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true, ExtraExtensions: []pkix.Extension{extension},
	}}
}

func TestCheckRefusesWhatWasNotAskedFor(t *testing.T) {
	root := newAuthority(t, nil)
	middle := newAuthority(t, root)
	other := newAuthority(t, nil)
	all := Capabilities{Extensions: true, NamesBesideCSR: true, Validity: true}
	foreign, err := url.Parse("spiffe://cluster.local/ns/kube-system/sa/admin")
	if err != nil {
		t.Fatal(err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	later, err := tokentime.Extension(now.Add(time.Hour), "")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(leaf *x509.Certificate)
		by     *catest.CA
		can    *Capabilities
		says   string
	}{
		"what was asked for":  {},
		"another key":         {change: func(c *x509.Certificate) { c.PublicKey = &catest.Key(t).PublicKey }, says: "another key"},
		"another kind of key": {change: func(c *x509.Certificate) { c.PublicKey = &weak.PublicKey }, says: "another key"},
		"another identity":    {change: func(c *x509.Certificate) { c.URIs = []*url.URL{foreign} }, says: "has the URIs"},
		"a second identity": {change: func(c *x509.Certificate) { c.URIs = append(c.URIs[:1:1], foreign) },
			says: "has the URIs"},
		"no identity": {change: func(c *x509.Certificate) { c.URIs = nil }, says: "has the URIs"},
		"a DNS name": {change: func(c *x509.Certificate) { c.DNSNames = []string{"istiod.istio-system.svc"} },
			says: "DNS names"},
		"an address": {change: func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} },
			says: "IP addresses"},
		"an email address":  {change: func(c *x509.Certificate) { c.EmailAddresses = []string{"a@b.c"} }, says: "email"},
		"an authority":      {change: func(c *x509.Certificate) { c.IsCA = true }, says: "authority"},
		"the right to sign": {change: func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }, says: "authority"},
		"a longer life":     {change: func(c *x509.Certificate) { c.NotAfter = now.Add(3 * time.Hour) }, says: "longer than"},
		"a shorter life":    {change: func(c *x509.Certificate) { c.NotAfter = now.Add(time.Minute) }, says: "less than"},
		"a shorter life that it may give": {change: func(c *x509.Certificate) { c.NotAfter = now.Add(time.Minute) },
			can: &Capabilities{Extensions: true}},
		"a life that is over": {change: func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Second) }, can: &Capabilities{},
			says: "clock"},
		"a life that has not begun": {change: func(c *x509.Certificate) { c.NotBefore = now.Add(time.Minute) }, says: "clock"},
		"an earlier beginning":      {change: func(c *x509.Certificate) { c.NotBefore = now.Add(-50 * time.Minute) }},
		"no use for TLS": {change: func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment },
			says: "digital signatures"},
		"servers alone": {change: func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] },
			says: "lacks an extended key usage"},
		"any use": {change: func(c *x509.Certificate) {
			c.ExtKeyUsage = append(c.ExtKeyUsage[:2:2], x509.ExtKeyUsageAny)
		}, says: "not asked for"},
		"no time of the last token":       {change: func(c *x509.Certificate) { c.ExtraExtensions = nil }, says: "lacks the extension"},
		"none, by a signer that has none": {change: func(c *x509.Certificate) { c.ExtraExtensions = nil }, can: &Capabilities{}},
		"another time of the last token": {change: func(c *x509.Certificate) { c.ExtraExtensions = []pkix.Extension{later} },
			says: "another value"},
		"another time, from one that has none": {change: func(c *x509.Certificate) { c.ExtraExtensions = []pkix.Extension{later} },
			can: &Capabilities{}, says: "another value"},
		"an extension of the ca's own": {change: func(c *x509.Certificate) {
			c.ExtraExtensions = append(c.ExtraExtensions[:1:1], pkix.Extension{Id: append(arc[:len(arc):len(arc)], 9), Value: []byte{5, 0}})
		}, says: "only the ca may ask for"},
		"a critical extension": {change: func(c *x509.Certificate) {
			c.ExtraExtensions = append(c.ExtraExtensions[:1:1], pkix.Extension{Id: []int{1, 2, 3}, Critical: true, Value: []byte{5, 0}})
		}, says: "critical extensions"},
		"a serial number that is counted": {change: func(c *x509.Certificate) { c.SerialNumber = big.NewInt(17) }, says: "random bits"},
		"by a foreign root":               {by: other, says: "does not verify"},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t)
			template := *r.Template
			if tc.change != nil {
				tc.change(&template)
			}
			by, can := middle, all
			if tc.by != nil {
				by = tc.by
			}
			if tc.can != nil {
				can = *tc.can
			}
			err := Check(r, can, []*x509.Certificate{sign(t, by, &template), middle.Cert}, catest.Pool(root.Cert), now)
			switch {
			case tc.says == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.says != "" && (err == nil || err.Fault != Lied || !strings.Contains(err.Error(), tc.says)):
				t.Errorf("got %v, want an error with %q", err, tc.says)
			}
		})
	}
}

func TestCheckRefusesChains(t *testing.T) {
	root := newAuthority(t, nil)
	middle := newAuthority(t, root)
	r := request(t)
	leaf := sign(t, middle, r.Template)
	pool := catest.Pool(root.Cert)
	for name, tc := range map[string]struct {
		chain []*x509.Certificate
		says  string
	}{
		"none":                    {nil, "chain of 0"},
		"without an intermediate": {[]*x509.Certificate{leaf}, "does not verify"},
		"a leaf as authority":     {[]*x509.Certificate{leaf, leaf}, "no authority"},
		"too long":                {[]*x509.Certificate{leaf, middle.Cert, middle.Cert, middle.Cert, middle.Cert, middle.Cert}, "chain of 6"},
		"as it should be":         {[]*x509.Certificate{leaf, middle.Cert}, ""},
		"with the root":           {[]*x509.Certificate{leaf, middle.Cert, root.Cert}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := Check(r, Capabilities{Extensions: true, Validity: true}, tc.chain, pool, now)
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want %q", err, tc.says)
			}
		})
	}
}
