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
	f := newFixture(t, options{})
	defer f.check()
	number := func(i int) request { return request{address: numberedVIP(i) + ":80", authority: numberedName(i)} }
	f.ok(t, number(0))
	whole := f.client.Held()
	load := f.load(number(0))

	f.WriteConfig("lean.yaml", lean)
	testkit.Eventually(t, takesEffect, func() error {
		if held := f.client.Held(); len(held.Clusters) > 20 || len(held.VirtualHosts) > 5 {
			return fmt.Errorf("%d clusters, %d virtual hosts", len(held.Clusters), len(held.VirtualHosts))
		}
		return nil
	})
	f.ok(t, number(1))
	f.talk(t, numberedVIP(1)+":9090", "hello", "v1: hello", "v2: hello")

	f.RemoveConfig("lean.yaml")
	testkit.Eventually(t, takesEffect, func() error {
		if held := f.client.Held(); len(held.Clusters) < len(whole.Clusters) || len(held.VirtualHosts) < len(whole.VirtualHosts) {
			return fmt.Errorf("%d clusters, %d virtual hosts", len(held.Clusters), len(held.VirtualHosts))
		}
		return nil
	})
	f.ok(t, number(2))
	f.talk(t, numberedVIP(2)+":9090", "hello", "v1: hello", "v2: hello")
	load.stop(t)
}
