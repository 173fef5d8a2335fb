package rotations

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/controlplane"
	"fairlead.dev/tests/internal/process"
)

var dialer net.Dialer

// roots verify a server; without the file, nothing does.
func roots(file string) *tls.Config {
	pool := x509.NewCertPool()
	text, _ := os.ReadFile(file)
	pool.AppendCertsFromPEM(text)
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
}

// TestEverySignerServes starts a ca with each signer, with the lifetimes and names of the rig: what fails here is no
// matter of swaps.
func TestEverySignerServes(t *testing.T) {
	istio(t)
	bin, err := binaries.Find(t.Context(), t.TempDir())
	testkit.NoError(t, err)
	for _, s := range signers {
		t.Run(s.name, func(t *testing.T) {
			dir := t.TempDir()
			start := func(p process.Program) (*process.Process, error) { return process.Start(p, nil) }
			plane, err := controlplane.New(controlplane.Config{
				Dir: dir, Binaries: bin, Start: start,
				CAPorts: controlplane.Ports{GRPC: testkit.FreeAddress(t).String(), Ops: testkit.FreeAddress(t).String()},
			})
			testkit.NoError(t, err)
			file := filepath.Join(dir, "signer.yaml")
			testkit.WriteFile(t, file, []byte(place{t: t, dir: dir, start: start}.file(s.file)))
			plane.CA.Add(append(caArgs("127.0.0.1"), "--signer-file", file)...)
			t.Cleanup(func() {
				if err := plane.Stop(time.Minute); err != nil {
					t.Error(err)
				}
			})
			testkit.NoError(t, plane.StartCA(t.Context()))
		})
	}
}

func (p place) file(of func(place) string) string { return of(p) }
