package serve_test

import (
	"fmt"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// TestHostileClient sends requests in any order with any content while the mesh changes. The server must neither panic
// (Internal) nor stop serving others.
func TestHostileClient(t *testing.T) {
	r := startQuiet(t, basicMesh()...)
	good := r.delta("good", "default")
	good.connectAll()
	rapid.Check(t, func(rt *rapid.T) {
		types := rapid.SampledFrom([]string{cds, eds, lds, rds, "", "type.googleapis.com/nonsense",
			"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"})
		name := rapid.SampledFrom([]string{"*", "", "80", "80|" + hostA, "80|nowhere", "\x00"})
		names := rapid.SliceOfN(name, 0, 4)
		nonce := rapid.SampledFrom([]string{"", "1", "2", "3", "9999999999", "x"})
		delta := rapid.Bool().Draw(rt, "delta")
		c, w := r.delta("bad", "default"), r.sotw("bad", "default")
		defer c.cancel()
		defer w.cancel()
		for i := range rapid.IntRange(1, 30).Draw(rt, "requests") {
			failure := nack("garbage")
			if rapid.Bool().Draw(rt, "ack") {
				failure = nil
			}
			var err error
			if delta {
				err = c.stream.Send(&discovery.DeltaDiscoveryRequest{
					Node: node("bad", "default"), TypeUrl: types.Draw(rt, "type"), ResourceNamesSubscribe: names.Draw(rt, "subscribe"),
					ResourceNamesUnsubscribe: names.Draw(rt, "unsubscribe"), ResponseNonce: nonce.Draw(rt, "nonce"), ErrorDetail: failure,
					InitialResourceVersions: map[string]string{name.Draw(rt, "held"): "x"},
				})
			} else {
				err = w.stream.Send(&discovery.DiscoveryRequest{
					Node: node("bad", "default"), TypeUrl: types.Draw(rt, "type"), ResourceNames: names.Draw(rt, "names"),
					ResponseNonce: nonce.Draw(rt, "nonce"), VersionInfo: nonce.Draw(rt, "version"), ErrorDetail: failure,
				})
			}
			if err != nil {
				break
			}
			if i%5 == 0 {
				r.edit(meshtest.Endpoints("default", hostA, 80, "10.7.0."+string(rune('1'+i%9))))
			}
		}
		used, ended := c.stream.CloseSend, c.err
		if !delta {
			used, ended = w.stream.CloseSend, w.err
		}
		if err := used(); err != nil {
			rt.Fatal(err)
		}
		if err := <-ended; status.Code(err) == codes.Internal {
			rt.Fatal(err)
		}
	})
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.7.1.1"))
	testkit.Eventually(t, patience, func() error {
		for len(good.got) > 0 {
			good.ack(<-good.got)
		}
		if got := r.status("good").GetAcked().GetSequence(); got != r.Sequence {
			return fmt.Errorf("revision %d, acknowledged %d", r.Sequence, got)
		}
		return nil
	})
}
