package cacerts

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
)

// crls are current lists of all authorities of a set.
func (p *plug) crls(t testing.TB) []byte {
	t.Helper()
	now := time.Now()
	var all []byte
	for _, ca := range []*catest.CA{p.issuing, p.middle, p.root} {
		all = append(all, ca.CRL(t, now.Add(-time.Hour), now.Add(time.Hour), p.middle.Cert.SerialNumber)...)
	}
	return all
}

func TestRevocations(t *testing.T) {
	p, other := newPlug(t), newPlug(t)
	now := time.Now()
	good := p.crls(t)
	list := func(ca *catest.CA, from, until time.Duration) []byte { return ca.CRL(t, now.Add(from), now.Add(until)) }
	current, extra := list(p.root, -time.Hour, time.Hour), catest.NewCA(t, nil, catest.Key(t))
	others := slices.Concat(list(p.middle, -time.Hour, time.Hour), current)
	old := list(p.root, -2*time.Hour, -time.Hour)
	mute := catest.NewCA(t, nil, catest.Key(t), func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCertSign })
	template := *mute.Cert
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	muteList := list(&catest.CA{Cert: &template, Key: mute.Key}, -time.Hour, time.Hour)
	for name, tc := range map[string]struct {
		content []byte
		// lists are how many count; want is a part of the problem.
		lists int
		want  string
	}{
		"complete":                   {good, 3, ""},
		"an old one as well":         {slices.Concat(old, good, old), 3, ""},
		"a list twice":               {slices.Concat(good, good), 3, ""},
		"malformed":                  {[]byte("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"), 0, "list 1 cannot be read"},
		"half":                       {good[:len(good)-40], 0, "a PEM block in it has no end"},
		"empty":                      {[]byte{}, 0, "has no list of revoked certificates in PEM; write one into it, or remove the file"},
		"another block":              {catest.Certs(p.root), 0, `block 1 is a "CERTIFICATE"`},
		"too many":                   {bytes.Repeat(old, maxCRLs+1), 0, "more than 50 lists"},
		"too large":                  {bytes.Repeat([]byte("# a comment\n"), maxCRL/12+1), 0, "ca-crl.pem: too large"},
		"expired":                    {slices.Concat(list(p.issuing, -time.Hour, time.Hour), list(p.middle, -time.Hour, time.Hour), old), 0, "expires at"},
		"expires in a minute":        {slices.Concat(list(p.issuing, -time.Hour, time.Minute), others), 0, "expires at"},
		"expires soon":               {slices.Concat(list(p.issuing, -time.Hour, 10*time.Minute), others), 3, "before"},
		"not valid yet":              {slices.Concat(list(p.issuing, time.Hour, 2*time.Hour), others), 0, "is valid from"},
		"one for later as well":      {slices.Concat(list(p.issuing, time.Hour, 2*time.Hour), good), 3, ""},
		"of a foreign issuer":        {slices.Concat(good, other.crls(t)), 3, "list 4, which is left out: "},
		"one missing":                {list(p.issuing, -time.Hour, time.Hour), 0, "is not in it"},
		"of an issuer that cannot":   {slices.Concat(good, muteList), 3, "cRLSign"},
		"an old one of another root": {slices.Concat(good, list(extra, -2*time.Hour, -time.Hour)), 3, "which is left out, expires at"},
		"one of another root":        {slices.Concat(good, list(extra, -time.Hour, time.Hour)), 4, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := write(t, p.istio(t).with(texts{crlName: tc.content, "root-cert.pem": catest.Certs(p.root, extra)}))
			i, _ := newIssuer(t, dir, Mesh{})
			problem := text(i.Problem())
			named := problem == "" || strings.Contains(problem, filepath.Join(dir, crlName))
			if (problem == "") != (tc.want == "") || !strings.Contains(problem, tc.want) || !named {
				t.Errorf("problem: %q", problem)
			}
			// Whatever the lists are, leaves are signed.
			if err := issuedBy(t, i, p.issuing, p.root.Cert); err != nil {
				t.Error(err)
			}
			if a, _ := i.Authorities(); len(a.CRLs) != tc.lists {
				t.Errorf("%d lists", len(a.CRLs))
			}
		})
	}
}

// Lists that cannot be used stop neither a new set, nor are they needed for one.
func TestRevocationsAndRotation(t *testing.T) {
	p := newPlug(t)
	dir := write(t, p.istio(t).with(texts{crlName: p.crls(t)}))
	i, _ := newIssuer(t, dir, Mesh{})
	replace := func(files texts) {
		t.Helper()
		for name, content := range files {
			testkit.WriteFile(t, filepath.Join(dir, name), content)
		}
		i.reload()
	}
	state := func(when string, signing *catest.CA, lists int, words string) {
		t.Helper()
		a, _ := i.Authorities()
		problem := text(i.Problem())
		if len(a.CRLs) != lists || (problem == "") != (words == "") || !strings.Contains(problem, words) {
			t.Errorf("%s: %d lists, problem %q", when, len(a.CRLs), problem)
		}
		if err := issuedBy(t, i, signing, p.root.Cert); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	state("at first", p.issuing, 3, "")
	replace(texts{crlName: []byte("-----BEGIN")})
	state("a malformed list", p.issuing, 3, "the last good lists stay")
	next := p.successor(t)
	replace(next.istio(t))
	state("another intermediate", next.issuing, 0, "not checked for revocation")
	replace(texts{crlName: next.crls(t)})
	state("its lists", next.issuing, 3, "")
	before := served(t, i)
	replace(texts{"ca-key.pem": {}, crlName: append(next.crls(t), p.root.CRL(t, time.Now(), time.Now().Add(time.Hour))...)})
	state("newer lists with a broken set", next.issuing, 3, "ca-key.pem")
	if slices.EqualFunc(before, served(t, i), bytes.Equal) {
		t.Error("the older lists are used")
	}
	replace(next.istio(t).with(texts{crlName: next.crls(t)}))
	state("all good", next.issuing, 3, "")
	testkit.NoError(t, os.RemoveAll(dir))
	i.reload()
	state("no directory", next.issuing, 3, "mount the Secret")
	testkit.NoError(t, os.Mkdir(dir, 0o700))
	replace(next.istio(t))
	state("no lists", next.issuing, 0, "")
}

func served(t *testing.T, i *Issuer) [][]byte {
	t.Helper()
	a, _ := i.Authorities()
	if a == nil {
		t.Fatal("no authorities")
	}
	return a.CRLs
}
