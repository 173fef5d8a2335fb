package service

import (
	"testing"

	"google.golang.org/protobuf/proto"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/signertest"
	"fairlead.dev/services/ca/internal/signer/upstream"
)

// FuzzAnnouncement: an announcement is refused, or has roots that are authorities' and no more than the bounds.
func FuzzAnnouncement(f *testing.F) {
	ca := signertest.NewCA(f, "upstream")
	raw, err := proto.Marshal(&cav1.WatchAuthoritiesResponse{
		RootCertificates: signertest.PEM(ca.Root), IntermediateCertificates: signertest.PEM(ca.Intermediate),
		CertificateRevocationLists: [][]byte{{1}}, Capabilities: &cav1.SignerCapabilities{Validity: true},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var a cav1.WatchAuthoritiesResponse
		if proto.Unmarshal(raw, &a) != nil {
			return
		}
		parsed, err := parse(&a, signer.Capabilities{Extensions: true})
		if err != nil {
			return
		}
		if len(parsed.roots) == 0 || len(parsed.roots) > upstream.MaxRoots || len(parsed.intermediates) > upstream.MaxIntermediates ||
			len(parsed.crls) > maxCRLs || !parsed.roots[0].IsCA {
			t.Errorf("%+v", parsed)
		}
		_ = upstream.NewTrust(nil).Set(parsed.roots, parsed.intermediates, parsed.crls)
	})
}
