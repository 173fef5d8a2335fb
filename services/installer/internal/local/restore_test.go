package local

import (
	"errors"
	"fmt"
	"testing"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/local/rundir"
)

// TestADeletedPodStartsAgain deletes the object of a running Pod, and a Sidecar that the node has written.
func TestADeletedPodStartsAgain(t *testing.T) {
	w := newFixture(t, "")
	w.cfg.Plan.Pods[0].Sidecar = []byte(
		`{"apiVersion":"networking.istio.io/v1","kind":"Sidecar","metadata":{"name":"fairlead-web-0","namespace":"shop"}}`)
	w.start(t)
	pid := func() int {
		state, err := rundir.Open(w.cfg.Layout.Dir)
		if err != nil || !state.Pods[0].Ready {
			return 0
		}
		return state.Pods[0].Containers[0].PID
	}
	first := 0
	testkit.Eventually(t, within, func() error {
		if first = pid(); first == 0 {
			return errors.New("the Pod is not ready")
		}
		return nil
	})
	remove := func(kind, name string) {
		t.Helper()
		key := &configv1.ObjectKey{Kind: kind, Namespace: "shop", Name: name}
		if _, err := w.server.Delete(t.Context(), &configv1.DeleteRequest{Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	remove("Sidecar", "fairlead-web-0")
	testkit.Eventually(t, within, w.prints("Sidecar shop/fairlead-web-0 was deleted: it is written again"))
	if w.server.Object("Sidecar", "shop", "fairlead-web-0") == nil {
		t.Error("the Sidecar stays away")
	}
	if now := pid(); now != first {
		t.Errorf("the loss of a Sidecar has restarted the Pod: pid %d, was %d", now, first)
	}
	remove("Pod", "web-0")
	testkit.Eventually(t, within, func() error {
		if now := pid(); now == 0 || now == first {
			return fmt.Errorf("pid %d, was %d; console:\n%s", now, first, w.screen)
		}
		return nil
	})
	w.ready(t, "True")
}

// TestAScaledPodSaysThatItHasEnded scales a Deployment down and up: each line comes when it is so.
func TestAScaledPodSaysThatItHasEnded(t *testing.T) {
	w := newFixture(t, "")
	w.start(t)
	w.ready(t, "True")
	scale := func(replicas int) {
		t.Helper()
		if err := rundir.WriteScales(w.cfg.Layout.Scale(), rundir.Scales{"shop/web": replicas}); err != nil {
			t.Fatal(err)
		}
	}
	scale(0)
	testkit.Eventually(t, within, w.prints("Pod web-0.shop has ended: its Deployment is scaled down"))
	scale(1)
	testkit.Eventually(t, within, w.prints("Pod web-0.shop starts: its Deployment is scaled up"))
	w.ready(t, "True")
}
