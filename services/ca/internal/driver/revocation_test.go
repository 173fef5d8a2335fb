package driver

import (
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/rotation"
	"fairlead.dev/services/ca/internal/signer"
)

func (m *mesh) KeyIDs(signers ...uint64) [][]byte {
	var out [][]byte
	for _, id := range signers {
		if m.keyID != nil {
			out = append(out, m.keyID(id))
			continue
		}
		out = append(out, []byte{byte(id)})
	}
	return out
}

// listOfCA is a list of an authority in DER.
func listOfCA(t *testing.T, ca *catest.CA) []byte {
	t.Helper()
	block, _ := pem.Decode(ca.CRL(t, time.Now().Add(-time.Hour), time.Now().Add(300*24*time.Hour)))
	return block.Bytes
}

func TestListsArePublishedIfEveryAuthorityHasOne(t *testing.T) {
	root, other := catest.NewCA(t, nil, catest.Key(t)), catest.NewCA(t, nil, catest.Key(t))
	issuing := catest.NewCA(t, root, catest.Key(t))
	first := &signer.Authorities{CRLs: [][]byte{listOfCA(t, root), listOfCA(t, issuing)}}
	first.Roots, first.Intermediates = append(first.Roots, root.Cert), append(first.Intermediates, issuing.Cert)
	second := &signer.Authorities{CRLs: [][]byte{listOfCA(t, other)}}
	second.Roots = append(second.Roots, other.Cert)
	rootText, otherText := string(catest.Certs(root)), string(catest.Certs(other))
	half, none := *first, *second
	half.CRLs, none.CRLs = half.CRLs[:1], nil
	id := issuing.Cert.SubjectKeyId
	for name, tc := range map[string]struct {
		in    revocation
		want  int
		words string
	}{
		"one signer":                   {revocation{[]*signer.Authorities{first}, []string{rootText}, [][]byte{id, nil}}, 2, ""},
		"two signers":                  {revocation{[]*signer.Authorities{first, second}, []string{rootText, otherText}, [][]byte{id}}, 3, ""},
		"the next signer has no list":  {revocation{[]*signer.Authorities{first, &none}, []string{rootText, otherText}, nil}, 0, "has no list"},
		"a root beside them":           {revocation{[]*signer.Authorities{first}, []string{rootText, otherText}, nil}, 0, "has no list"},
		"an intermediate without list": {revocation{[]*signer.Authorities{&half}, []string{rootText}, nil}, 0, "has no list"},
		"an intermediate of before": {revocation{[]*signer.Authorities{first}, []string{rootText}, [][]byte{id, {1, 2}}}, 0,
			"key identifier 0102"},
		"a signer that is away": {revocation{[]*signer.Authorities{first, nil}, []string{rootText}, nil}, 0, "is away"},
		"no list":               {revocation{[]*signer.Authorities{{CRLs: [][]byte{{1}}}}, nil, nil}, 0, "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tc.in.lists()
			if len(got) != tc.want || (err == nil) != (tc.words == "") || err != nil && !strings.Contains(err.Error(), tc.words) {
				t.Errorf("%d lists, %v", len(got), err)
			}
		})
	}
}

// A swap from a plugged-in CA with lists to a root without one takes the lists out of the bundle that brings that root,
// before anybody could have a certificate of it.
func TestASwapToASignerWithoutListsTakesThemAway(t *testing.T) {
	root := catest.NewCA(t, nil, catest.Key(t))
	issuing := catest.NewCA(t, root, catest.Key(t))
	dir := t.TempDir()
	for name, text := range map[string][]byte{
		"ca-cert.pem": catest.Certs(issuing), "ca-key.pem": catest.KeyPEM(t, issuing.Key), "cert-chain.pem": catest.Certs(issuing, root),
		"root-cert.pem": catest.Certs(root),
		"ca-crl.pem": append(root.CRL(t, time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)),
			issuing.CRL(t, time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour))...),
	} {
		testkit.WriteFile(t, dir+"/"+name, text)
	}
	f := newFixture(t)
	f.mesh.keyID = func(uint64) []byte { return issuing.Cert.SubjectKeyId }
	f.write(t, fmt.Sprintf("apiVersion: ca.fairlead.dev/v1\nkind: Signer\nname: plugged\ncaCerts: {directory: %s}\n", dir))
	defer f.run(t)()
	if b := f.bundle(); len(b.CRLs) != 2 || len(b.Roots) != 1 {
		t.Fatalf("the bundle has %d lists and %d roots", len(b.CRLs), len(b.Roots))
	}
	f.do(t, caapi.Command{Action: caapi.Swap, File: fmt.Sprintf(selfSigned, f.dir), Reason: "test"})
	s := f.waits(t, rotation.Gate)
	if b := f.bundle(); len(b.CRLs) != 0 || len(b.Roots) != 2 {
		t.Errorf("at the gate the bundle has %d lists and %d roots", len(b.CRLs), len(b.Roots))
	}
	if got := fmt.Sprint(s.Problems); !strings.Contains(got, "has no list") {
		t.Errorf("the status does not tell it: %s", got)
	}
	// Given up, the lists come back.
	f.do(t, caapi.Command{Action: caapi.Abort})
	s = f.waits(t, rotation.Idle)
	if b := f.bundle(); len(b.CRLs) != 2 || len(b.Roots) != 1 || len(s.Problems) != 0 {
		t.Errorf("afterwards the bundle has %d lists and %d roots, problems %v", len(b.CRLs), len(b.Roots), s.Problems)
	}
}
