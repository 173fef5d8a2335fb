package ondemand

import (
	"fmt"
	"testing"

	"fairlead.dev/pkg/testkit"
)

const lean = `---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: lean, namespace: apps}
spec: {selector: {matchLabels: {app: client}}, onDemand: true}
`

// TestSwitchedOver makes a running sidecar one that holds only what it calls, and back, under load.
func TestSwitchedOver(t *testing.T) {
	w := newWorld(t, options{})
	defer w.check()
	number := func(i int) request { return request{address: numberedVIP(i) + ":80", authority: numberedName(i)} }
	w.ok(t, number(0))
	whole := w.client.Held()
	load := w.load(number(0))

	w.WriteConfig("lean.yaml", lean)
	testkit.Eventually(t, takesEffect, func() error {
		if held := w.client.Held(); len(held.Clusters) > 20 || len(held.VirtualHosts) > 5 {
			return fmt.Errorf("%d clusters, %d virtual hosts", len(held.Clusters), len(held.VirtualHosts))
		}
		return nil
	})
	w.ok(t, number(1))
	w.talk(t, numberedVIP(1)+":9090", "hello", "v1: hello", "v2: hello")

	w.RemoveConfig("lean.yaml")
	testkit.Eventually(t, takesEffect, func() error {
		if held := w.client.Held(); len(held.Clusters) < len(whole.Clusters) || len(held.VirtualHosts) < len(whole.VirtualHosts) {
			return fmt.Errorf("%d clusters, %d virtual hosts", len(held.Clusters), len(held.VirtualHosts))
		}
		return nil
	})
	w.ok(t, number(2))
	w.talk(t, numberedVIP(2)+":9090", "hello", "v1: hello", "v2: hello")
	load.stop(t)
}
