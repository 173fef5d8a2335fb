package kube

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
)

// noticed bounds the time until config-watcher says that the network drops everything: it asks every 10 s for an answer
// within 10 s, and then again for one within 5 s.
const noticed = 40 * time.Second

// TestANetworkThatDropsEverything: no connection ends or is refused, and no byte arrives.
func TestANetworkThatDropsEverything(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	m := newMesh(t, s)
	s.Apply(t, shop)
	c, kubeconfig := newCable(t, s)
	w := startWatcher(t, kubeconfig)
	v := w.subscribe()
	hasShop(t, v)
	before := w.until("read", func(st sourceState) bool { return st.Synced && st.Degraded == "" })

	silent := func(t *testing.T) {
		t.Helper()
		removed, began := v.removals(), time.Now()
		c.freeze()
		st := w.until("unreachable", func(st sourceState) bool { return st.Degraded != "" && len(st.DegradedKinds) > 10 })
		if took := time.Since(began); took > noticed {
			t.Errorf("it is noticed after %s", took)
		} else {
			t.Logf("it is noticed after %.1f s", took.Seconds())
		}
		if st.DegradedKinds[0].Reason != "unreachable" || st.Objects < before.Objects || v.removals() != removed {
			t.Errorf("%d objects of %d, %d resources removed, kinds %+v", st.Objects, before.Objects, v.removals()-removed, st.DegradedKinds[0])
		}
		if code, body, err := w.get("/readyz"); code != http.StatusOK {
			t.Errorf("/readyz: %d %s %v", code, body, err)
		}
	}
	back := func(t *testing.T, began time.Time) {
		t.Helper()
		w.until("read again", func(st sourceState) bool { return st.Synced && st.Degraded == "" && len(st.DegradedKinds) == 0 })
		t.Logf("it is back after %.1f s", time.Since(began).Seconds())
	}
	rule := func(t *testing.T, name string) {
		t.Helper()
		s.Apply(t, "{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: "+name+", namespace: shop}, spec: {host: cart}}")
	}

	t.Run("for a while: what changed and went meanwhile arrives, and the rest stays", func(t *testing.T) {
		silent(t)
		rule(t, "first")
		if err := m.client.Resource(virtualServices).Namespace("shop").Delete(t.Context(), "cart", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		c.thaw()
		v.has("DestinationRule shop/first", nil)
		v.lacks(cartRoute)
		v.has(strictPolicy, nil)
		back(t, began)
	})
	t.Run("and for good on the old connections: new ones take over", func(t *testing.T) {
		silent(t)
		rule(t, "second")
		began := time.Now()
		c.forget()
		c.thaw()
		v.has("DestinationRule shop/second", nil)
		v.has(cartRule, nil)
		back(t, began)
	})
	t.Run("from the start on: nothing is served, readiness names the source, and the log the address", func(t *testing.T) {
		c.freeze()
		fresh := newWatcher(t, kubeconfig)
		fresh.start()
		testkit.Eventually(t, patience, func() error {
			code, body, err := fresh.get("/readyz")
			if err == nil && (code != http.StatusServiceUnavailable || !strings.Contains(body, sourceName+" cannot be read and never was") ||
				!strings.Contains(body, "make the API server reachable")) {
				err = fmt.Errorf("%d %s", code, body)
			}
			return err
		})
		if n := fresh.metric("revision_sequence"); n != 0 {
			t.Errorf("it serves revision %v", n)
		}
		if address := kubeapi.Load(t, kubeconfig).Host; !strings.Contains(fresh.process.Log(), address) ||
			!strings.Contains(fresh.process.Log(), "correct --kubeconfig") {
			t.Errorf("its log says nothing of %s, or of a remedy", address)
		}
		c.thaw()
		fresh.ready()
		hasShopBut(t, fresh.subscribe(), cartRoute)
	})
}

// hasShopBut is hasShop without one resource.
func hasShopBut(t *testing.T, v *view, gone string) {
	t.Helper()
	for _, key := range shopKeys {
		if key != gone {
			v.has(key, nil)
		}
	}
}
