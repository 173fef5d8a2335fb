package app

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes/fake"

	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/ca/internal/record"
)

// TestTheStateMovesToASecret holds the way from a root on a disk to replicas: the ca gets a Secret for its state and a
// signer with keys in another, goes on from the record that it has, and swaps.
func TestTheStateMovesToASecret(t *testing.T) {
	issuer, api := testkit.NewIssuer(t), fake.NewClientset()
	o := defaults(t, issuer)
	o.Kubernetes, o.JWKSFile, o.Issuer, o.AdminJWKSFile, o.Replica = true, "", "", "", "ca"
	in := deps{Cluster: clusterOf(t, api, issuer)}
	h := startIn(t, issuer, o, in)
	signs := func(id uint64) caapi.Status {
		t.Helper()
		var s caapi.Status
		testkit.Eventually(t, testkit.Patience, func() error {
			if s = h.status(); s.Step != "idle" || s.Signers[0].ID != id {
				return fmt.Errorf("status %+v, want signer %d", s, id)
			}
			return nil
		})
		return s
	}
	if code, problem := h.order(caapi.Command{Action: caapi.Rotate}); code != http.StatusOK {
		t.Fatalf("HTTP %d %s", code, problem)
	}
	before := signs(2)
	h.Stop()

	onDisk := o
	o.StateSecret, o.SignerFile = "istio-system/ca-state", filepath.Join(t.TempDir(), "signer.yaml")
	testkit.WriteFile(t, o.SignerFile, []byte("{apiVersion: ca.fairlead.dev/v1, kind: Signer, name: shared, "+
		"intermediate: {keys: {secret: {namespace: istio-system, name: ca-keys}}, selfSigned: {}}}\n"))
	h = startIn(t, issuer, o, in)
	if s := signs(3); s.Signers[0].Name != "shared" || s.Epoch != before.Epoch || s.Generation <= before.Generation {
		t.Errorf("status %+v after %+v", s, before)
	}
	h.Stop()

	// What is on the disk is old, and nobody goes on from there.
	_, err := open(t.Context(), &onDisk, deps{Deps: service.Deps{Registry: prometheus.NewRegistry()}, Cluster: in.Cluster})
	if err == nil || !strings.Contains(err.Error(), "start the ca with --state-secret again") {
		t.Errorf("error %v", err)
	}
	h = startIn(t, issuer, o, in)
	signs(3)
}

func TestARecordIsTakenAlongOnce(t *testing.T) {
	file := func(text string) record.Store {
		path := filepath.Join(t.TempDir(), "state.json")
		if text != "" {
			testkit.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		}
		return record.NewFile(path, nil)
	}
	for name, tc := range map[string]struct{ from, to, want string }{
		"none":          {"", "", ""},
		"the first":     {"a", "", "a"},
		"another there": {"a", "b", "b"},
		"none to take":  {"", "b", "b"},
	} {
		t.Run(name, func(t *testing.T) {
			to := file(tc.to)
			if err := takeAlong(t.Context(), file(tc.from), to); err != nil {
				t.Fatal(err)
			}
			if r, _ := to.Load(t.Context()); string(r.Data) != tc.want {
				t.Errorf("record %q, want %q", r.Data, tc.want)
			}
		})
	}
}
