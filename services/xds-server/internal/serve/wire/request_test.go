package wire

import (
	"bytes"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/plan"
)

// inPieces splits bytes into buffers, as the network may.
func inPieces(raw []byte, cuts []int) mem.BufferSlice {
	var data mem.BufferSlice
	for _, n := range cuts {
		n = min(n, len(raw))
		data, raw = append(data, mem.SliceBuffer(bytes.Clone(raw[:n]))), raw[n:]
	}
	return append(data, mem.SliceBuffer(bytes.Clone(raw)))
}

func TestDeltaRequestIsReadFromAnyPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := &discovery.DeltaDiscoveryRequest{
			Node: &core.Node{Id: rapid.StringN(0, 300, -1).Draw(t, "node")}, TypeUrl: "type",
			ResponseNonce:            rapid.StringN(0, 5, -1).Draw(t, "nonce"),
			ResourceNamesSubscribe:   rapid.SliceOfN(rapid.StringN(1, 200, -1), 0, 40).Draw(t, "subscribe"),
			ResourceNamesUnsubscribe: rapid.SliceOfN(rapid.StringN(1, 9, -1), 0, 3).Draw(t, "unsubscribe"),
			ErrorDetail:              &rpcstatus.Status{Message: rapid.StringN(0, 9, -1).Draw(t, "failure")},
			InitialResourceVersions:  rapid.MapOfN(rapid.StringN(1, 200, -1), rapid.StringN(0, 16, -1), 0, 40).Draw(t, "held"),
		}
		raw, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got := &Request{Delta: true}
		data := inPieces(raw, rapid.SliceOfN(rapid.IntRange(0, 150), 0, 60).Draw(t, "cuts"))
		if err := got.decode(data); err != nil {
			t.Fatal(err)
		}
		data.Free() // as gRPC does
		if names := got.Names(); !slices.Equal(names, want.GetResourceNamesSubscribe()) {
			t.Fatalf("subscribes to %q, want %q", names, want.GetResourceNamesSubscribe())
		}
		if all := got.Initial(); !maps.Equal(all, want.GetInitialResourceVersions()) {
			t.Fatalf("holds %q, want %q", all, want.GetInitialResourceVersions())
		}
		var tally plan.Tally
		for _, version := range want.GetInitialResourceVersions() {
			tally.AddString(version)
		}
		if got.InitialTally != tally {
			t.Fatal("the tally is not that of the versions")
		}
		if got.Size != len(raw) || got.Wildcard() != slices.Contains(want.GetResourceNamesSubscribe(), "*") {
			t.Fatalf("%d bytes, wildcard: %v", got.Size, got.Wildcard())
		}
		gotNode, err := got.Node()
		if err != nil {
			t.Fatal(err)
		}
		rest := &discovery.DeltaDiscoveryRequest{
			Node: gotNode, TypeUrl: got.TypeURL, ResponseNonce: got.Nonce, ErrorDetail: got.Failure, ResourceNamesUnsubscribe: got.Unsubscribe,
		}
		want.ResourceNamesSubscribe, want.InitialResourceVersions = nil, nil
		if !proto.Equal(rest, want) {
			t.Fatalf("the rest is %v, want %v", rest, want)
		}
		got.Release()
	})
}

func TestRequestThatIsNoMessage(t *testing.T) {
	name := protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), "name")
	for about, raw := range map[string][]byte{
		"cut in the content":     name[:len(name)-1],
		"cut in the header":      name[:1],
		"field number 0":         {2, 0},
		"group":                  protowire.AppendTag(nil, 9, protowire.StartGroupType),
		"longer than any":        protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.BytesType), 1<<40),
		"length that never ends": append(protowire.AppendTag(nil, 1, protowire.BytesType), bytes.Repeat([]byte{0xff}, 20)...),
		"name that is not UTF-8": protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), "\xff"),
	} {
		for _, cuts := range [][]int{nil, {1}, {1, 1, 1}} {
			r := &Request{Delta: true}
			if err := r.decode(inPieces(raw, cuts)); err == nil {
				t.Errorf("%s: taken", about)
			}
		}
	}
}

func TestSotwRequest(t *testing.T) {
	want := &discovery.DiscoveryRequest{
		Node: &core.Node{Id: "node"}, TypeUrl: "type", ResponseNonce: "7", VersionInfo: "v", ResourceNames: []string{"a", "*"},
		ErrorDetail: &rpcstatus.Status{Message: "no"},
	}
	raw, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	r := &Request{}
	if err := Codec().Unmarshal(inPieces(raw, []int{3}), r); err != nil {
		t.Fatal(err)
	}
	gotNode, err := r.Node()
	if err != nil {
		t.Fatal(err)
	}
	got := &discovery.DiscoveryRequest{
		Node: gotNode, TypeUrl: r.TypeURL, ResponseNonce: r.Nonce, VersionInfo: r.Version, ResourceNames: r.Names(), ErrorDetail: r.Failure,
	}
	if !proto.Equal(got, want) || r.Size != len(raw) || !r.Wildcard() || r.NameTally.Count() != 2 {
		t.Errorf("%v, %d bytes, want %v", got, r.Size, want)
	}
}

// TestNodeIsReadAsFarAsSomebodyNeedsIt has the parts of a node that proxies are told apart by, and those that nobody
// reads.
func TestNodeIsReadAsFarAsSomebodyNeedsIt(t *testing.T) {
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": "default", "LABELS": map[string]any{"app": "a"}})
	if err != nil {
		t.Fatal(err)
	}
	want := &core.Node{
		Id: "id", Metadata: metadata, Extensions: []*core.Extension{{Name: "e"}, {Name: "envoy.filters.http.rbac"}},
		UserAgentVersionType: &core.Node_UserAgentBuildVersion{UserAgentBuildVersion: &core.BuildVersion{}},
	}
	sent := proto.CloneOf(want)
	sent.Extensions = append(sent.Extensions, &core.Extension{Name: "f"}, &core.Extension{Name: "envoy.filters.http.rbac"})
	sent.Cluster, sent.Locality = "c", &core.Locality{Region: "r"}
	raw, err := proto.Marshal(&discovery.DeltaDiscoveryRequest{Node: sent})
	if err != nil {
		t.Fatal(err)
	}
	r := &Request{Delta: true}
	if err := r.decode(inPieces(raw, []int{5, 9})); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Node(); err != nil || !proto.Equal(got, want) {
		t.Errorf("%v, error %v, want %v", got, err, want)
	}
}

// TestRequestTakesLittleMoreThanItsBytes has requests of many elements that take many times their bytes once they are
// decoded.
func TestRequestTakesLittleMoreThanItsBytes(t *testing.T) {
	const size = 4 << 20
	empties := func(number protowire.Number) []byte {
		return bytes.Repeat(protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), nil), size/2)
	}
	in := func(number protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
	}
	for about, c := range map[string]struct {
		delta   bool
		raw     []byte
		refusal codes.Code
	}{
		"node.extensions":                 {true, in(1, empties(9)), codes.InvalidArgument},
		"node.extensions, below the size": {true, in(1, empties(9)[:class.MaxNodeBytes]), codes.OK},
		"node in parts":                   {true, bytes.Repeat(in(1, empties(11)[:100<<10]), 3), codes.InvalidArgument},
		"error_detail.details":            {true, in(7, empties(3)), codes.OK},
		"many errors":                     {true, empties(7), codes.OK},
		"locators":                        {true, empties(8), codes.OK},
		"names":                           {true, empties(3), codes.ResourceExhausted},
		"unsubscribed":                    {true, empties(4), codes.ResourceExhausted},
		"initial versions":                {true, empties(5), codes.ResourceExhausted},
		"sotw node.extensions":            {false, in(2, empties(9)), codes.InvalidArgument},
		"sotw error_detail.details":       {false, in(6, empties(3)), codes.OK},
		"sotw names":                      {false, empties(3), codes.ResourceExhausted},
		"sotw locators":                   {false, empties(7), codes.OK},
	} {
		t.Run(about, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r := &Request{Delta: c.delta}
			if err := Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(c.raw)}, r); err != nil {
				t.Fatal(err)
			}
			if r.Refusal == nil {
				if _, err := r.Node(); err != nil {
					t.Fatal(err)
				}
				r.Names()
				r.Initial()
			}
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > 48<<20 {
				t.Errorf("%d KiB are %d KiB decoded", len(c.raw)>>10, took>>10)
			}
			if got := status.Code(r.Refusal); got != c.refusal {
				t.Errorf("refused with %s, want %s", got, c.refusal)
			}
		})
	}
}

// BenchmarkDecodeReconnect reads the first request of a proxy that reconnects in a mesh of 1,000 services.
func BenchmarkDecodeReconnect(b *testing.B) {
	req := &discovery.DeltaDiscoveryRequest{TypeUrl: "type", InitialResourceVersions: map[string]string{}}
	for i := range 1000 {
		name := fmt.Sprintf("outbound|80||service-%05d.namespace-1.svc.cluster.local", i)
		req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, name)
		req.InitialResourceVersions[name] = fmt.Sprintf("%016x", i)
	}
	raw, err := proto.Marshal(req)
	if err != nil {
		b.Fatal(err)
	}
	var cuts []int
	for range len(raw) / (16 << 10) {
		cuts = append(cuts, 16<<10)
	}
	data := inPieces(raw, cuts)
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		r := &Request{Delta: true}
		if err := r.decode(data); err != nil {
			b.Fatal(err)
		}
	}
}
