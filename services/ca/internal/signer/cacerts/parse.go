package cacerts

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/held"
	"fairlead.dev/services/ca/internal/signer"
)

const (
	// maxRoots and maxChain bound the certificates of a file.
	maxRoots = 100
	maxChain = 16
)

// plugged is a set that has been read.
type plugged struct {
	held.Authority
	// where says where each certificate was found.
	where map[*x509.Certificate]string
	// notes say what is left out.
	notes []string
}

// parse reads a set of the directory. It verifies only what tells whether the files are of one set; whether the mesh
// can use it, Authority.Unsuited says.
func parse(dir string, f *files, now time.Time) (*plugged, error) {
	p := &plugged{where: map[*x509.Certificate]string{}}
	certs, certErr := p.certificates(filepath.Join(dir, f.layout.cert), f.cert, maxChain)
	if certErr == nil && len(certs) == 0 {
		certErr = fmt.Errorf("%s: has no certificate; write the issuing certificate into it, in PEM", filepath.Join(dir, f.layout.cert))
	}
	key, keyErr := parseKey(f.key)
	if keyErr != nil {
		keyErr = fmt.Errorf("%s: %w", filepath.Join(dir, f.layout.key), keyErr)
	}
	chain, chainErr := p.certificates(filepath.Join(dir, f.layout.chain), f.chain, maxChain)
	roots, rootsErr := p.certificates(filepath.Join(dir, f.layout.roots), f.roots, maxRoots)
	if err := errors.Join(certErr, keyErr, chainErr, rootsErr); err != nil {
		return nil, err
	}
	p.Certificate, p.Key = certs[0], key
	if !signer.SameKey(key.Public(), p.Certificate.PublicKey) {
		return nil, fmt.Errorf("%s: is not the key of the certificate in %s; write both of one set", filepath.Join(dir, f.layout.key),
			filepath.Join(dir, f.layout.cert))
	}
	if err := p.setRoots(roots, filepath.Join(dir, f.layout.roots), now); err != nil {
		return nil, err
	}
	return p, p.setChain(slices.Concat(certs[1:], chain))
}

// setRoots sets the roots. A self-signed issuing certificate is one, whether or not the file has it: istiod renews the
// certificate in istio-ca-secret without the file.
func (p *plugged) setRoots(roots []*x509.Certificate, path string, now time.Time) error {
	if selfSigned(p.Certificate) {
		roots = append([]*x509.Certificate{p.Certificate}, roots...)
	}
	if len(roots) == 0 {
		return fmt.Errorf("%s: is missing or has no certificate; write the mesh's root certificates into it, in PEM", path)
	}
	for _, root := range roots {
		switch {
		case slices.ContainsFunc(p.Roots, root.Equal):
		case !now.Before(root.NotAfter) && root != p.Certificate:
			p.notes = append(p.notes, fmt.Sprintf("%s: expired at %s, and is left out", p.where[root], stamp(root.NotAfter)))
		default:
			p.Roots = append(p.Roots, root)
		}
	}
	if len(p.Roots) == 0 {
		return fmt.Errorf("%s: every root has expired, the last one at %s; replace them, or set the clock", path,
			stamp(slices.MaxFunc(roots, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter))
	}
	return nil
}

// setChain sorts the certificates by their distance from the issuing one, which they may have in them, and leaves roots
// out. One that has signed none of the others is of another set.
func (p *plugged) setChain(candidates []*x509.Certificate) error {
	var left []*x509.Certificate
	for _, c := range candidates {
		if !c.Equal(p.Certificate) && !slices.ContainsFunc(p.Roots, c.Equal) && !slices.ContainsFunc(left, c.Equal) {
			left = append(left, c)
		}
	}
	for reached := []*x509.Certificate{p.Certificate}; len(reached) > 0; reached = reached[1:] {
		left = slices.DeleteFunc(left, func(c *x509.Certificate) bool {
			if !signed(c, reached[0]) {
				return false
			}
			reached = append(reached, c)
			if !selfSigned(c) {
				p.Chain = append(p.Chain, c)
			}
			return true
		})
	}
	var errs []error
	for _, c := range left {
		errs = append(errs, fmt.Errorf("%s: this certificate of %q is no issuer of the one in %s, so that the files seem to be of different "+
			"sets; write all of one set, or leave it out", p.where[c], c.Subject, p.where[p.Certificate]))
	}
	return errors.Join(errs...)
}

// signed reports whether parent's key has signed child. A signature of an algorithm that is too weak to be verified
// counts: Authority.Unsuited blames it.
func signed(parent, child *x509.Certificate) bool {
	if string(parent.RawSubject) != string(child.RawIssuer) {
		return false
	}
	err := parent.CheckSignature(child.SignatureAlgorithm, child.RawTBSCertificate, child.Signature)
	_, weak := errors.AsType[x509.InsecureAlgorithmError](err)
	return err == nil || weak
}

func selfSigned(c *x509.Certificate) bool { return signed(c, c) }

// certificates reads PEM. Whatever begins as a block and is none is an error: half a file has such an end.
func (p *plugged) certificates(path string, content []byte, limit int) ([]*x509.Certificate, error) {
	certs, err := tlsconf.ParseCertificates(content)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w; write certificates in PEM into it", path, err)
	case begins(content) != len(certs):
		return nil, fmt.Errorf("%s: has %d readable certificates, and begins %d; write the file again, as a whole", path, len(certs),
			begins(content))
	case len(certs) > limit:
		return nil, fmt.Errorf("%s: has %d certificates, of at most %d; leave in it only what the mesh needs", path, len(certs), limit)
	}
	for i, c := range certs {
		p.where[c] = path
		if len(certs) > 1 {
			p.where[c] = fmt.Sprintf("%s, certificate %d", path, i+1)
		}
	}
	return certs, nil
}

// begins counts the blocks that begin in a PEM text.
func begins(content []byte) int { return bytes.Count(content, []byte("-----BEGIN ")) }

// parseKey reads a private key. It leaves the parser's messages out of its errors, because they could quote the key.
func parseKey(content []byte) (crypto.Signer, error) {
	var parsed any
	blocks := 0
	for rest := content; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		blocks++
		if block.Type == "EC PARAMETERS" || block.Type == "CERTIFICATE" { // which openssl and others write beside the key
			continue
		}
		if parsed != nil {
			return nil, errors.New("has more than one private key; leave only that of the issuing certificate in it")
		}
		if block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "" {
			return nil, errors.New("the key is encrypted, and the ca has no passphrase; write the decrypted key: openssl pkey -in FILE")
		}
		var err error
		switch block.Type {
		case "RSA PRIVATE KEY":
			parsed, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			parsed, err = x509.ParseECPrivateKey(block.Bytes)
		case "PRIVATE KEY":
			parsed, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		default:
			return nil, errors.New("is not a private key in PEM (PKCS#8, PKCS#1 or SEC 1); write the key of the issuing certificate into it")
		}
		if err != nil {
			return nil, errors.New("the key cannot be read, or is of a size that is not supported; write it again, as openssl pkey does")
		}
	}
	key, ok := parsed.(crypto.Signer)
	switch {
	case begins(content) != blocks:
		return nil, errors.New("a PEM block in it has no end; write the file again, as a whole")
	case parsed == nil:
		return nil, errors.New("has no private key in PEM; write the key of the issuing certificate into it")
	case !ok:
		return nil, errors.New("has a key that cannot sign; use ECDSA on P-256 or P-384, or RSA of 2048 bits or more")
	}
	return key, nil
}
