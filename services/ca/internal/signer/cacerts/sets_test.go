package cacerts

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
)

// keyFile encodes a key as openssl and others do.
func keyFile(t testing.TB, kind string, der []byte, err error) []byte {
	t.Helper()
	testkit.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// set is a directory that is taken or refused.
type set struct {
	files texts
	// want are parts of Problem; none if the set is taken.
	want []string
	// intermediates are how many follow a leaf, if the set is taken.
	intermediates int
	// roots are how many are announced, if that is not 1.
	roots int
}

func no(parts ...string) []string { return parts }

// sets are directories as plain files, by name. The oracle test gives the same ones to istiod.
func sets(t testing.TB) map[string]set {
	t.Helper()
	all := map[string]set{}
	maps.Copy(all, takenSets(t))
	maps.Copy(all, brokenSets(t))
	maps.Copy(all, unsuitedSets(t))
	return all
}

func takenSets(t testing.TB) map[string]set {
	t.Helper()
	p := newPlug(t)
	istio := p.istio(t)
	second := catest.NewCA(t, nil, catest.Key(t))
	direct := catest.NewCA(t, p.root, catest.Key(t))
	own := catest.NewCA(t, nil, catest.RSAKey(t, 2048)) // istiod's own root is of RSA
	renewed := catest.NewCA(t, nil, own.Key, func(c *x509.Certificate) { c.Subject = own.Cert.Subject })
	dead := catest.NewCA(t, nil, catest.Key(t), catest.Valid(time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)))
	outdated := catest.NewCA(t, nil, own.Key, func(c *x509.Certificate) { c.Subject = own.Cert.Subject },
		catest.Valid(time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)))
	rsaKey := catest.RSAKey(t, 2048)
	rsaIssuing := catest.NewCA(t, p.middle, rsaKey)
	rsaPKCS8 := catest.KeyPEM(t, rsaKey)
	p384 := catest.CurveKey(t, elliptic.P384())
	p384DER, p384Err := x509.MarshalECPrivateKey(p384)
	sec1, sec1Err := x509.MarshalECPrivateKey(p.issuing.Key.(*ecdsa.PrivateKey))
	ecFile := keyFile(t, "EC PRIVATE KEY", sec1, sec1Err)
	parameters := pem.EncodeToMemory(&pem.Block{Type: "EC PARAMETERS", Bytes: []byte{6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7}})
	cross := *second.Cert
	commented := slices.Concat([]byte("Certificate:\n    Data:\n        Version: 3 (0x2)\n"), catest.Certs(p.root), []byte("\n\n"))
	crossed := &catest.CA{Cert: p.root.Sign(t, &cross, second.Key.Public())}
	below := catest.NewCA(t, second, catest.Key(t))
	self := func(cert *catest.CA, changes texts) texts {
		return texts{"ca-cert.pem": catest.Certs(cert), "ca-key.pem": keyFile(t, "RSA PRIVATE KEY",
			x509.MarshalPKCS1PrivateKey(cert.Key.(*rsa.PrivateKey)), nil), "root-cert.pem": catest.Certs(cert), "cert-chain.pem": {},
			"key.pem": {},
		}.with(changes)
	}
	return map[string]set{
		"as Istio documents": {files: istio, intermediates: 2},
		"chain without the root": {files: istio.with(texts{"cert-chain.pem": catest.Certs(p.issuing, p.middle)}),
			intermediates: 2},
		"chain in another order": {files: istio.with(texts{"cert-chain.pem": catest.Certs(p.root, p.middle, p.issuing)}),
			intermediates: 2},
		"chain without the issuer": {files: istio.with(texts{"cert-chain.pem": catest.Certs(p.middle)}),
			intermediates: 2},
		"no chain file": {files: texts{"ca-cert.pem": catest.Certs(direct), "ca-key.pem": catest.KeyPEM(t, direct.Key),
			"root-cert.pem": catest.Certs(p.root)},
			intermediates: 1},
		"chain in the certificate": {files: istio.with(texts{"ca-cert.pem": catest.Certs(p.issuing, p.middle), "cert-chain.pem": {}}),
			intermediates: 2},
		"two roots": {files: istio.with(texts{"root-cert.pem": catest.Certs(second, p.root)}),
			intermediates: 2, roots: 2},
		"a root twice": {files: istio.with(texts{"root-cert.pem": catest.Certs(p.root, p.root)}),
			intermediates: 2},
		"an expired root as well": {files: istio.with(texts{"root-cert.pem": catest.Certs(dead, p.root)}),
			intermediates: 2},
		"all roots in the chain": {files: istio.with(texts{"root-cert.pem": catest.Certs(second, p.root),
			"cert-chain.pem": catest.Certs(p.issuing, p.middle, second, p.root)}),
			intermediates: 2, roots: 2},
		"a cross-signed root": {files: texts{"ca-cert.pem": catest.Certs(below), "ca-key.pem": catest.KeyPEM(t, below.Key),
			"cert-chain.pem": catest.Certs(below, crossed), "root-cert.pem": catest.Certs(p.root, second)},
			intermediates: 2, roots: 2},
		"comments in files": {files: istio.with(texts{"root-cert.pem": commented}),
			intermediates: 2},
		"SEC 1 key": {files: istio.with(texts{"ca-key.pem": ecFile}), intermediates: 2},
		"key with its parameters": {files: istio.with(texts{"ca-key.pem": slices.Concat(parameters, ecFile)}),
			intermediates: 2},
		"PKCS#1 key": {files: istio.with(texts{"ca-cert.pem": catest.Certs(rsaIssuing),
			"ca-key.pem": keyFile(t, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey), nil), "cert-chain.pem": catest.Certs(p.middle)}),
			intermediates: 2},
		"PKCS#8 key of RSA": {files: istio.with(texts{"ca-cert.pem": catest.Certs(rsaIssuing), "ca-key.pem": rsaPKCS8,
			"cert-chain.pem": catest.Certs(p.middle)}),
			intermediates: 2},
		"P-384": {files: istio.with(texts{"ca-cert.pem": catest.Certs(catest.NewCA(t, p.middle, p384)),
			"ca-key.pem": keyFile(t, "EC PRIVATE KEY", p384DER, p384Err), "cert-chain.pem": catest.Certs(p.middle)}),
			intermediates: 2},
		"as cert-manager writes": {files: p.tls(t), intermediates: 2},
		"both layouts": {files: p.tls(t).with(texts{"ca-cert.pem": {}, "ca-key.pem": {}}),
			intermediates: 2},
		"self-signed by cert-manager": {files: texts{"tls.crt": catest.Certs(own), "tls.key": rsaKeyPEM(t, own),
			"ca.crt": catest.Certs(own)}},
		"TLS Secret without its root":   {files: texts{"tls.crt": catest.Certs(own), "tls.key": rsaKeyPEM(t, own)}},
		"istio-ca-secret":               {files: self(own, nil)},
		"istio-ca-secret, empty roots":  {files: self(own, texts{"root-cert.pem": {}})},
		"istio-ca-secret, two files":    {files: self(own, texts{"root-cert.pem": nil, "cert-chain.pem": nil, "key.pem": nil})},
		"istio-ca-secret, renewed":      {files: self(renewed, texts{"root-cert.pem": catest.Certs(own)}), roots: 2},
		"istio-ca-secret, renewed late": {files: self(renewed, texts{"root-cert.pem": catest.Certs(outdated)})},
	}
}

func rsaKeyPEM(t testing.TB, ca *catest.CA) []byte {
	t.Helper()
	return keyFile(t, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(ca.Key.(*rsa.PrivateKey)), nil)
}

func brokenSets(t testing.TB) map[string]set {
	t.Helper()
	p, other := newPlug(t), newPlug(t)
	istio := p.istio(t)
	certless := bytes.Replace(catest.Certs(p.issuing), []byte("CERTIFICATE"), []byte("TRUSTED CERTIFICATE"), 2)
	encrypted := pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("secret")})
	legacy := pem.EncodeToMemory(&pem.Block{
		Type: "RSA PRIVATE KEY", Headers: map[string]string{"DEK-Info": "AES-128-CBC,00"}, Bytes: []byte{1},
	})
	noCertificate := keyFile(t, "CERTIFICATE", []byte{1}, nil)
	half := func(content []byte) []byte { return content[:len(content)*2/3] }
	large := bytes.Repeat([]byte("# a comment\n"), maxFile/12+1)
	var many []byte
	for range maxRoots + 1 {
		many = append(many, catest.Certs(p.root)...)
	}
	return map[string]set{
		"no files": {files: texts{},
			want: no("ca-cert.pem: is missing", "ca-key.pem: is missing")},
		"no certificate": {files: istio.with(texts{"ca-cert.pem": nil}),
			want: no("ca-cert.pem: is missing; write it there")},
		"no key": {files: istio.with(texts{"ca-key.pem": nil}),
			want: no("ca-key.pem: is missing; write it there")},
		"no key in the TLS Secret": {files: p.tls(t).with(texts{"tls.key": nil}),
			want: no("tls.key: is missing")},
		"no roots": {files: istio.with(texts{"root-cert.pem": nil}),
			want: no("root-cert.pem: is missing", "write the mesh's root certificates")},
		"no roots in the TLS Secret": {files: p.tls(t).with(texts{"ca.crt": nil}), want: no("ca.crt: is missing")},
		"empty certificate": {files: istio.with(texts{"ca-cert.pem": {}}),
			want: no("ca-cert.pem: has no certificate")},
		"empty key": {files: istio.with(texts{"ca-key.pem": {}}),
			want: no("ca-key.pem: has no private key")},
		"empty roots": {files: istio.with(texts{"root-cert.pem": {}}),
			want: no("root-cert.pem: is missing or has no certificate")},
		"half a certificate": {files: istio.with(texts{"ca-cert.pem": half(istio["ca-cert.pem"])}),
			want: no("ca-cert.pem: has 0 readable certificates, and begins 1")},
		"half a chain": {files: istio.with(texts{"cert-chain.pem": half(istio["cert-chain.pem"])}),
			want: no("cert-chain.pem: has", "write the file again, as a whole")},
		"half of two roots": {files: istio.with(texts{"root-cert.pem": half(catest.Certs(p.root, other.root))}),
			want: no("root-cert.pem: has 1 readable certificates, and begins 2")},
		"half a key": {files: istio.with(texts{"ca-key.pem": half(istio["ca-key.pem"])}),
			want: no("ca-key.pem: a PEM block in it has no end")},
		"no PEM": {files: istio.with(texts{"ca-cert.pem": p.issuing.Cert.Raw}),
			want: no("ca-cert.pem: has no certificate; write the issuing certificate into it, in PEM")},
		"a request as the key": {files: istio.with(texts{"ca-key.pem": keyFile(t, "CERTIFICATE REQUEST", []byte{1}, nil)}),
			want: no("ca-key.pem: is not a private key in PEM")},
		"another block": {files: istio.with(texts{"ca-cert.pem": certless}),
			want: no("ca-cert.pem", "TRUSTED CERTIFICATE")},
		"no certificate in a block": {files: istio.with(texts{"root-cert.pem": noCertificate}),
			want: no("root-cert.pem: entry 1")},
		"a certificate as the key": {files: istio.with(texts{"ca-key.pem": istio["ca-cert.pem"]}),
			want: no("ca-key.pem: has no private key in PEM")},
		"key and certificate in one": {files: istio.with(texts{"ca-key.pem": slices.Concat(istio["ca-key.pem"], istio["ca-cert.pem"])}),
			intermediates: 2},
		"two keys": {files: istio.with(texts{"ca-key.pem": slices.Concat(istio["ca-key.pem"], other.istio(t)["ca-key.pem"])}),
			want: no("ca-key.pem: has more than one private key")},
		"encrypted key": {files: istio.with(texts{"ca-key.pem": encrypted}),
			want: no("ca-key.pem: the key is encrypted", "openssl pkey")},
		"encrypted key of PKCS#1": {files: istio.with(texts{"ca-key.pem": legacy}),
			want: no("ca-key.pem: the key is encrypted")},
		"no key in a block": {files: istio.with(texts{"ca-key.pem": keyFile(t, "PRIVATE KEY", []byte("hush"), nil)}),
			want: no("ca-key.pem: the key cannot be read")},
		"key of another certificate": {files: istio.with(texts{"ca-key.pem": other.istio(t)["ca-key.pem"]}),
			want: no("ca-key.pem: is not the key of the certificate in", "ca-cert.pem; write both of one set")},
		"root of another set": {files: istio.with(texts{"root-cert.pem": catest.Certs(other.root), "cert-chain.pem": catest.Certs(p.middle)}),
			want: no("ca-cert.pem: issuer:", "leads to none of the 1 roots")},
		"chain of another set": {files: istio.with(texts{"cert-chain.pem": other.istio(t)["cert-chain.pem"]}),
			want: no("cert-chain.pem, certificate 1: this certificate of", "of different sets")},
		"leftovers in the chain": {files: istio.with(texts{"cert-chain.pem": catest.Certs(p.middle, other.middle)}),
			want: no("cert-chain.pem, certificate 2", "leave it out")},
		"a gap in the chain": {files: istio.with(texts{"cert-chain.pem": catest.Certs(p.issuing)}),
			want: no("ca-cert.pem: issuer:", "write the certificates of its issuers into the chain")},
		"a self-signed foreign root": {files: texts{"ca-cert.pem": catest.Certs(p.root), "ca-key.pem": catest.KeyPEM(t, p.root.Key),
			"root-cert.pem": catest.Certs(p.root), "cert-chain.pem": catest.Certs(other.root)},
			want: no("cert-chain.pem: this certificate of")},
		"too large": {files: istio.with(texts{"cert-chain.pem": large}),
			want: no("cert-chain.pem: too large", "leave in it only what the ca needs")},
		"a key too large": {files: istio.with(texts{"ca-key.pem": large}),
			want: no("ca-key.pem: too large")},
		"too many roots": {files: istio.with(texts{"root-cert.pem": many}),
			want: no("root-cert.pem: has 101 certificates, of at most 100")},
		"several mistakes": {files: istio.with(texts{"ca-key.pem": {}, "root-cert.pem": half(istio["root-cert.pem"])}),
			want: no("ca-key.pem: has no", "root-cert.pem: has 0")},
	}
}

func unsuitedSets(t testing.TB) map[string]set {
	t.Helper()
	p := newPlug(t)
	istio := p.istio(t)
	now := time.Now()
	// issuing is the set with an issuing certificate and key of its own.
	issuing := func(c *catest.CA) texts {
		return istio.with(texts{"ca-cert.pem": catest.Certs(c), "ca-key.pem": catest.KeyPEM(t, c.Key),
			"cert-chain.pem": catest.Certs(p.middle)})
	}
	changed := func(change catest.Change) texts { return issuing(catest.NewCA(t, p.middle, catest.Key(t), change)) }
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	testkit.NoError(t, err)
	short := catest.NewCA(t, p.root, catest.Key(t), func(c *x509.Certificate) { c.MaxPathLenZero = true })
	foreign := catest.NewCA(t, nil, catest.Key(t), func(c *x509.Certificate) {
		c.URIs = []*url.URL{{Scheme: "spiffe", Host: "elsewhere.org"}}
	})
	dead := catest.NewCA(t, nil, catest.Key(t), catest.Valid(now.Add(-time.Hour), now.Add(-time.Minute)))
	return map[string]set{
		"no authority": {files: changed(func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature }),
			want: no("ca-cert.pem: basicConstraints: this is not the certificate of a certificate authority")},
		"no keyCertSign": {files: changed(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature }),
			want: no("ca-cert.pem: keyUsage: ")},
		"path length 0": {files: changed(func(c *x509.Certificate) { c.MaxPathLenZero = true }), intermediates: 2},
		"path length 0 above": {files: istio.with(texts{"ca-cert.pem": catest.Certs(catest.NewCA(t, short, p.issuing.Key)),
			"cert-chain.pem": catest.Certs(short)}), want: no("cert-chain.pem: basicConstraints: pathLenConstraint allows 0")},
		"URIs of another domain": {files: changed(func(c *x509.Certificate) { c.PermittedURIDomains = []string{"elsewhere.org"} }),
			want: no("ca-cert.pem: nameConstraints: exclude spiffe://cluster.local", "permit")},
		"URIs of the mesh": {files: changed(func(c *x509.Certificate) { c.PermittedURIDomains = []string{"cluster.local"} }),
			intermediates: 2},
		"DNS names of others": {files: changed(func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"example.org"} }),
			want: no("ca-cert.pem: nameConstraints: exclude ca.istio-system.svc")},
		"expired": {files: changed(catest.Valid(now.Add(-time.Hour), now.Add(-time.Minute))),
			want: no("ca-cert.pem: validity: expired at", "replace it")},
		"not valid yet": {files: changed(catest.Valid(now.Add(time.Hour), now.Add(2*time.Hour))),
			want: no("ca-cert.pem: validity: valid from")},
		"all roots expired": {files: istio.with(texts{"root-cert.pem": catest.Certs(dead)}),
			want: no("root-cert.pem: every root has expired")},
		"own root expired": {files: texts{"ca-cert.pem": catest.Certs(dead), "ca-key.pem": catest.KeyPEM(t, dead.Key),
			"cert-chain.pem": {}, "root-cert.pem": catest.Certs(dead)}, want: no("ca-cert.pem: validity: expired at")},
		"RSA-1024": {files: issuing(catest.NewCA(t, p.middle, catest.RSAKey(t, 1024))),
			want: no("ca-cert.pem: subjectPublicKeyInfo: an RSA key of 1024 bits")},
		"P-224": {files: issuing(catest.NewCA(t, p.middle, catest.CurveKey(t, elliptic.P224()))),
			want: no("ca-cert.pem: subjectPublicKeyInfo: ", "P-224")},
		"P-521": {files: issuing(catest.NewCA(t, p.middle, catest.CurveKey(t, elliptic.P521()))),
			want: no("P-521")},
		"Ed25519": {files: issuing(catest.NewCA(t, p.middle, edwards)), want: no("Ed25519")},
		"SHA-1": {files: changed(func(c *x509.Certificate) { c.SignatureAlgorithm = x509.ECDSAWithSHA1 }),
			want: no("ca-cert.pem: signatureAlgorithm: ECDSA-SHA1")},
		"a weak root": {files: istio.with(texts{"root-cert.pem": catest.Certs(p.root, catest.NewCA(t, nil, catest.RSAKey(t, 1024)))}),
			want: no("root-cert.pem, certificate 2: subjectPublicKeyInfo")},
		"a foreign one": {files: istio.with(texts{"root-cert.pem": catest.Certs(p.root, foreign)}),
			want: no("root-cert.pem, certificate 2: subjectAltName: ", `"elsewhere.org"`, "cluster.local")},
		"a leaf among roots": {files: istio.with(texts{"root-cert.pem": slices.Concat(catest.Certs(p.root), testkit.CertPEM(p.root.Sign(t,
			&x509.Certificate{SerialNumber: p.root.Cert.SerialNumber, Subject: p.middle.Cert.Subject, NotAfter: now.Add(time.Hour)},
			p.middle.Key.Public())))}), want: no("root-cert.pem, certificate 2: basicConstraints")},
		"for servers only": {files: changed(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }),
			want: no("ca-cert.pem: extendedKeyUsage: ")},
	}
}

// meshNames are names that the certificates of the test sets must permit.
var meshNames = Mesh{DNS: []string{"ca.istio-system.svc"}}

func TestSets(t *testing.T) {
	for name, s := range sets(t) {
		t.Run(name, func(t *testing.T) {
			dir := write(t, s.files)
			i, log := newIssuer(t, dir, meshNames)
			problem := text(i.Problem())
			a, _ := i.Authorities()
			if len(s.want) > 0 {
				if a != nil || !strings.Contains(problem, dir) {
					t.Errorf("taken, or the directory is not named: %s", problem)
				}
				for _, part := range s.want {
					if !strings.Contains(problem, part) {
						t.Errorf("%q does not say %q", problem, part)
					}
				}
				if strings.Contains(problem+log.String(), "hush") || !strings.Contains(log.String(), "level=WARN") {
					t.Errorf("log: %s", log)
				}
				return
			}
			if a == nil || problem != "" {
				t.Fatalf("refused: %s", problem)
			}
			if len(a.Intermediates) != s.intermediates || len(a.Roots) != max(s.roots, 1) {
				t.Errorf("%d intermediates, %d roots", len(a.Intermediates), len(a.Roots))
			}
			issuing := &catest.CA{Cert: i.current.Certificate}
			if err := issuedBy(t, i, issuing, a.Roots...); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestConfigCheck(t *testing.T) {
	for dir, want := range map[string]string{"": "directory: is required", "etc/cacerts": "directory: \"etc/cacerts\" is a relative path", "/etc/cacerts": ""} {
		err := (&Config{Directory: dir}).Check()
		if (err == nil) != (want == "") || !strings.Contains(text(err), want) {
			t.Errorf("%q: %v", dir, err)
		}
		if _, newErr := New(Config{Directory: dir}, deps(), Mesh{}); text(newErr) != text(err) {
			t.Error(newErr)
		}
	}
}

// Modes and links of a directory that the kubelet has not mounted, and of one that it has.
func TestFilesOfOthers(t *testing.T) {
	p := newPlug(t)
	chmod := func(name string, mode os.FileMode) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			testkit.NoError(t, os.Chmod(filepath.Join(dir, name), mode))
		}
	}
	// linked moves a file away and puts a link to it.
	linked := func(name, to string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			target := filepath.Join(dir, to)
			if filepath.IsAbs(to) {
				target = filepath.Join(t.TempDir(), "file")
				to = target
			}
			testkit.NoError(t, os.MkdirAll(filepath.Dir(target), 0o700))
			testkit.NoError(t, os.Rename(filepath.Join(dir, name), target))
			testkit.NoError(t, os.Symlink(to, filepath.Join(dir, name)))
		}
	}
	for name, tc := range map[string]struct {
		change func(t *testing.T, dir string)
		want   string
	}{
		"key 0600":              {chmod("ca-key.pem", 0o600), ""},
		"key 0400":              {chmod("ca-key.pem", 0o400), ""},
		"key 0644":              {chmod("ca-key.pem", 0o644), "ca-key.pem: has mode 0644, so that others than the ca can read or replace the key"},
		"key 0640":              {chmod("ca-key.pem", 0o640), "has mode 0640"},
		"certificate 0644":      {chmod("ca-cert.pem", 0o644), ""},
		"roots 0666":            {chmod("root-cert.pem", 0o666), "root-cert.pem: has mode 0666, so that everybody can replace it; run: chmod o-w"},
		"directory 0777":        {chmod(".", 0o777), "so that everybody can put another key there"},
		"directory 0755":        {chmod(".", 0o755), ""},
		"link inside":           {linked("ca-key.pem", "v1/ca-key.pem"), ""},
		"link out of it":        {linked("ca-key.pem", "../key"), "ca-key.pem: is a symbolic link that cannot be followed inside of the directory"},
		"absolute link":         {linked("root-cert.pem", "/elsewhere"), "root-cert.pem: is a symbolic link"},
		"absolute link as data": {linked("..data", "/elsewhere"), "..data: "},
		"link to nowhere": {func(t *testing.T, dir string) {
			t.Helper()
			testkit.NoError(t, os.Remove(filepath.Join(dir, "ca-key.pem")))
			testkit.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "ca-key.pem")))
		}, "ca-key.pem: is a symbolic link that cannot be followed"},
		"pipe": {func(t *testing.T, dir string) {
			t.Helper()
			testkit.NoError(t, os.Remove(filepath.Join(dir, "ca-key.pem")))
			testkit.NoError(t, syscall.Mkfifo(filepath.Join(dir, "ca-key.pem"), 0o600))
		}, "ca-key.pem: not a regular file"},
		"no directory": {func(t *testing.T, dir string) {
			t.Helper()
			testkit.NoError(t, os.RemoveAll(dir))
		}, "mount the Secret"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := write(t, p.istio(t))
			if name == "absolute link as data" {
				testkit.NoError(t, os.Mkdir(filepath.Join(dir, "..data"), 0o700))
			}
			tc.change(t, dir)
			i, _ := newIssuer(t, dir, Mesh{})
			if problem := text(i.Problem()); (problem == "") != (tc.want == "") || !strings.Contains(problem, tc.want) {
				t.Errorf("problem: %q", problem)
			}
		})
	}
	t.Run("mounted by the kubelet", func(t *testing.T) {
		dir := t.TempDir()
		testkit.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky)) // which a volume of a Secret has
		mount(t, dir, p.istio(t))
		i, _ := newIssuer(t, dir, Mesh{})
		if err := i.Problem(); err != nil {
			t.Error(err)
		}
	})
}

// A key of another user is read through its group, and must not be open to more.
func TestKeyOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	p := newPlug(t)
	for mode, want := range map[os.FileMode]bool{0o640: true, 0o440: true, 0o600: true, 0o644: false, 0o660: false} {
		dir := write(t, p.istio(t))
		key := filepath.Join(dir, "ca-key.pem")
		testkit.NoError(t, os.Chown(key, 12345, 0))
		testkit.NoError(t, os.Chmod(key, mode))
		if i, _ := newIssuer(t, dir, Mesh{}); (i.Problem() == nil) != want {
			t.Errorf("%04o: %v", mode, i.Problem())
		}
	}
}
