package kuberequest

import (
	"crypto"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/url"
	"slices"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/ca/internal/signer"
)

// checkCSR returns an error unless the caller's own CSR asks for exactly what was decided, because a controller copies
// from it what it finds. It returns the CSR in PEM.
func checkCSR(r *signer.Request, kind string) ([]byte, *signer.Error) {
	if len(r.CSR) == 0 {
		return nil, signer.Errorf(signer.Unsuitable, "a %s needs the caller's own CSR; send one", kind)
	}
	c, err := x509.ParseCertificateRequest(r.CSR)
	if err != nil {
		return nil, signer.Errorf(signer.Unsuitable, "the CSR is no PKCS#10 certificate request: %w; send one", short(err))
	}
	t := r.Template
	if key, ok := c.PublicKey.(interface{ Equal(x crypto.PublicKey) bool }); !ok || !key.Equal(t.PublicKey) {
		return nil, signer.Errorf(signer.Unsuitable, "the CSR has another key than the certificate that was decided on; send the CSR of this key")
	}
	for _, names := range []struct {
		what          string
		asked, wanted []string
	}{
		{"URI", lists.Map(c.URIs, (*url.URL).String), lists.Map(t.URIs, (*url.URL).String)},
		{"DNS names", c.DNSNames, t.DNSNames},
		{"IP addresses", lists.Map(c.IPAddresses, net.IP.String), lists.Map(t.IPAddresses, net.IP.String)},
		{"email addresses", c.EmailAddresses, nil},
	} {
		if !sameSet(names.asked, names.wanted) {
			return nil, signer.Errorf(signer.Unsuitable, "the CSR has the %s %q, wanted %q: the signer behind a %s takes names from the CSR alone; "+
				"send a CSR with these subject alternative names, as Istio's and Fairlead's agents do", names.what, names.asked, names.wanted, kind)
		}
	}
	for _, name := range c.Subject.Names {
		if text, ok := name.Value.(string); !ok || text != "" {
			return nil, signer.Errorf(signer.Unsuitable, "the CSR has the subject %q, which the signer behind a %s may copy; send a CSR without a "+
				"subject", cut(c.Subject.String(), 128), kind)
		}
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: r.CSR}), nil
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func isRSA(key any) bool {
	_, ok := key.(*rsa.PublicKey)
	return ok
}
