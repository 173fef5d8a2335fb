package waiting_test

import (
	"strings"
	"testing"
	"time"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/waiting"
)

// TestUntil waits in a mesh whose proxies have acknowledged revision 1, and which has VirtualService shop/web, whose
// condition Programmed says that a proxy rejects it.
func TestUntil(t *testing.T) {
	m := clitest.New(t)
	m.SetFiles([]*configv1.Object{{Key: kinds.Key("VirtualService", "shop", "web"), Source: "file", Manifest: []byte("{}")}}, nil)
	m.SetFleet([]*configv1.ProxyStatus{{NodeId: "sidecar~1~a.shop~x", Acked: clitest.Revision(1)}, {NodeId: "sidecar~1~b.shop~x"}}, nil)
	for name, tc := range map[string]struct {
		object, until string
		threshold     float64
		done          bool
		says          string
	}{
		"a rejection ends the wait":       {"web", waiting.Programmed, 1, false, "VirtualService shop/web: Rejected: 1 of 2 proxies acknowledged"},
		"delivery to all is too much":     {"web", waiting.Delivery, 1, false, "of 2 proxies have acknowledged it, not "},
		"delivery to nobody is there":     {"web", waiting.Delivery, 0, true, "of 2 proxies have acknowledged it"},
		"an object that is gone":          {"api", waiting.Deleted, 0, true, "deleted, "},
		"an object that is still there":   {"web", waiting.Deleted, 1, false, "it is still there, from file"},
		"a name that is nearly an object": {"wbe", waiting.Programmed, 1, false, `did you mean "web" in namespace shop?`},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := waiting.Until(t.Context(), m.Mesh(), waiting.Request{
				Key: kinds.Key("VirtualService", "shop", tc.object), For: tc.until, Threshold: tc.threshold, Timeout: 300 * time.Millisecond,
			})
			if result == nil || result.Done != tc.done || (err == nil) != tc.done || !strings.Contains(result.Message, tc.says) {
				t.Errorf("%+v, %v", result, err)
			}
		})
	}
}
