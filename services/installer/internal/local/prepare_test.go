package local

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/svid"

	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/local/rundir"
)

// TestCertificatesOfAnEarlierRunAreNotKept: they have that run's addresses, so clients would not verify them.
func TestCertificatesOfAnEarlierRunAreNotKept(t *testing.T) {
	layout := rundir.NewLayout(t.TempDir(), "")
	service := &plan.Service{Account: "xds-server", TokenFile: layout.Token("xds-server-0")}
	service.Name = "xds-server-0"
	kept := filepath.Join(layout.ServiceState(service.Name), svid.CacheFile)
	if err := os.MkdirAll(filepath.Dir(kept), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kept, []byte("certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := &Node{cfg: Config{Plan: &plan.Plan{Services: []*plan.Service{service}}, Layout: layout, Clock: clock.Real()}}
	for range 2 { // with one and without
		if _, err := n.prepare(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(kept); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the certificate is still there: %v", err)
	}
}
