package subscription

import (
	"runtime"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// heap returns the bytes in use on the heap.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far less than 2^63
}

// TestRejectionKeepsWhatIsShown has clients that reject a response with a message that is much longer.
func TestRejectionKeepsWhatIsShown(t *testing.T) {
	const clients = 64
	message := strings.Repeat("x", 60<<10)
	scripts := make([]*script, clients)
	for i := range scripts {
		scripts[i] = start(t, true, nil)
		scripts[i].run(mesh)
		scripts[i].do("sub cds *")
	}
	before := heap()
	for _, s := range scripts {
		s.request(urls["cds"], s.nonces[urls["cds"]], nil, nil, func(m *discovery.DeltaDiscoveryRequest) {
			m.ErrorDetail = &rpcstatus.Status{Message: message}
		})
	}
	if took := (heap() - before) / clients; took > 16<<10 {
		t.Errorf("a rejection keeps %d KiB, %d are shown", took>>10, maxRejectionBytes>>10)
	}
	types, _, _ := scripts[0].client.Status()
	if got := types[0].GetRejection().GetMessage(); got != message[:maxRejectionBytes] {
		t.Errorf("%d bytes are shown", len(got))
	}
}
