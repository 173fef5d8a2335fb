package serve_test

import (
	"fmt"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/structpb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// withMetadata is a node with n metadata entries.
func withMetadata(pod string, n int, value string) *core.Node {
	out := node(pod, "default")
	out.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i := range n {
		out.Metadata.Fields[fmt.Sprint("E", i)] = structpb.NewStringValue(value)
	}
	return out
}

// TestLargeRequestsAreNotKept opens streams whose nodes and requests have large parts that are not used.
func TestLargeRequestsAreNotKept(t *testing.T) {
	const streams, most = 16, 64 << 10
	junk := protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, 1<<20))
	for name, first := range map[string]func(pod string, m *discovery.DeltaDiscoveryRequest) *core.Node{
		"metadata": func(pod string, _ *discovery.DeltaDiscoveryRequest) *core.Node {
			return withMetadata(pod, 256, strings.Repeat("x", 50))
		},
		"unknown metadata": func(pod string, _ *discovery.DeltaDiscoveryRequest) *core.Node {
			n := withMetadata(pod, 0, "")
			for i := range 10000 {
				n.Metadata.Fields[fmt.Sprint("N", i)] = structpb.NewNumberValue(1)
			}
			return n
		},
		"unknown fields": func(pod string, m *discovery.DeltaDiscoveryRequest) *core.Node {
			m.ProtoReflect().SetUnknown(junk)
			return node(pod, "default")
		},
		"locators": func(pod string, m *discovery.DeltaDiscoveryRequest) *core.Node {
			m.ResourceLocatorsSubscribe = []*discovery.ResourceLocator{{Name: strings.Repeat("x", 1<<20)}}
			return node(pod, "default")
		},
		"nonce": func(pod string, m *discovery.DeltaDiscoveryRequest) *core.Node {
			m.ResponseNonce = strings.Repeat("x", 1<<20)
			return node(pod, "default")
		},
		"error": func(pod string, m *discovery.DeltaDiscoveryRequest) *core.Node {
			m.ErrorDetail = nack(strings.Repeat("x", 1<<20))
			return node(pod, "default")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startQuiet(t, basicMesh()...)
			open := func(pod string) {
				m := &discovery.DeltaDiscoveryRequest{TypeUrl: cds}
				c := r.deltaWith(t.Context(), first(pod, m))
				c.subscribe(cds)
				c.ack(<-c.got)
				c.send(m) // nothing answers it before the mesh changes
				c.subscribe(eds, "nowhere")
				r.until(pod, "subscribed", func(p *configv1.ProxyStatus) bool { return typeStatus(p, eds) != nil })
			}
			open("first")
			before := heap()
			for i := range streams {
				open(fmt.Sprintf("%c-pod", 'a'+i))
			}
			took := (heap() - before) / streams
			t.Logf("a stream takes %d bytes", took)
			if took > most {
				t.Errorf("a stream keeps %d bytes", took)
			}
		})
	}
}

// TestNodeWithManyEntriesIsRefused sends thousands of tiny entries, which take several times their length in memory.
func TestNodeWithManyEntriesIsRefused(t *testing.T) {
	r := startQuiet(t, basicMesh()...)
	c := r.deltaWith(t.Context(), withMetadata("pod", 16000, ""))
	c.subscribe(cds)
	c.endsWith(codes.InvalidArgument)
}

// TestRequestsThatGrowAreRefused sends requests of many elements in few bytes.
func TestRequestsThatGrowAreRefused(t *testing.T) {
	r := startQuiet(t, basicMesh()...)
	large := node("pod", "default")
	large.Extensions = make([]*core.Extension, 150_000)
	for i := range large.Extensions {
		large.Extensions[i] = &core.Extension{}
	}
	c := r.deltaWith(t.Context(), large)
	c.subscribe(cds)
	c.endsWith(codes.InvalidArgument)
	names := make([]string, 1<<19+1)
	c = r.delta("pod", "default")
	c.subscribe(eds, names...)
	c.endsWith(codes.ResourceExhausted)
	w := r.sotw("pod", "default")
	w.subscribe(eds, names...)
	w.endsWith(codes.ResourceExhausted)
}

// TestUnservedTypesAreBounded requests types that do not exist.
func TestUnservedTypesAreBounded(t *testing.T) {
	r := startQuiet(t, basicMesh()...)
	good := r.delta("good", "default")
	for range 3 {
		for i := range 10 {
			good.subscribe(fmt.Sprint("type.googleapis.com/nobody.", i))
		}
	}
	good.connectAll()
	c := r.delta("many", "default")
	for i := range 17 {
		c.subscribe(fmt.Sprint("type.googleapis.com/nobody.", i))
	}
	c.endsWith(codes.ResourceExhausted)
	w := r.sotw("long", "default")
	w.send("type.googleapis.com/"+strings.Repeat("x", 1<<10), nil)
	w.endsWith(codes.InvalidArgument)
}
