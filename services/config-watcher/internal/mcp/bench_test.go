package mcp

import (
	"testing"

	mcpv1alpha1 "istio.io/api/mcp/v1alpha1"

	"fairlead.dev/services/config-watcher/internal/kinds"
)

// BenchmarkDecode reads one ServiceEntry as a server sends it.
func BenchmarkDecode(b *testing.B) {
	entry := entryOf(b, func(*mcpv1alpha1.Resource) {})
	k := kinds.Find(kinds.GroupNetworking, "ServiceEntry")
	b.ReportAllocs()
	for b.Loop() {
		if d := Decode(k, entry); d.Object == nil {
			b.Fatal(d.Problems)
		}
	}
}
