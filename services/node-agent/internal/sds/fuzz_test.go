package sds

import (
	"context"
	"io"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/testkit"
)

// frames is a stream whose client sends one request and goes.
type frames struct {
	grpc.ServerStream
	ctx  context.Context
	next *discoveryv3.DiscoveryRequest
	sent []*discoveryv3.DiscoveryResponse
}

func (f *frames) Context() context.Context { return f.ctx }

func (f *frames) Recv() (*discoveryv3.DiscoveryRequest, error) {
	if f.next == nil {
		return nil, io.EOF
	}
	r := f.next
	f.next = nil
	return r, nil
}

func (f *frames) Send(r *discoveryv3.DiscoveryResponse) error {
	f.sent = append(f.sent, r)
	return nil
}

// Whatever a request says, the stream ends, follows no file afterwards, and has sent no secret that was not asked for.
func FuzzRequest(f *testing.F) {
	for _, names := range [][]string{{Default}, {RootCA, Default, Default}, {"", "~"}} {
		raw, err := proto.Marshal(&discoveryv3.DiscoveryRequest{TypeUrl: TypeURL, ResourceNames: names})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	source := testkit.PKI(f).NewSVID("a", "b")
	f.Fuzz(func(t *testing.T, raw []byte) {
		request := &discoveryv3.DiscoveryRequest{}
		if proto.Unmarshal(raw, request) != nil {
			return
		}
		asked := request.GetResourceNames()
		for _, name := range asked {
			if parse(name) != nil {
				return // this machine's files
			}
		}
		s := New(Config{Source: source, Log: testkit.Logger(t), Registerer: prometheus.NewRegistry()})
		stream := &frames{ctx: t.Context(), next: request}
		_ = s.StreamSecrets(stream)
		for _, r := range stream.sent {
			for _, packed := range r.GetResources() {
				if name := unpack(t, packed).GetName(); !strings.Contains("\x00"+strings.Join(asked, "\x00")+"\x00", "\x00"+name+"\x00") {
					t.Errorf("%q is sent, asked for were %q", name, asked)
				}
			}
		}
		if n := len(s.files.secrets); n > 0 {
			t.Errorf("%d names are followed", n)
		}
	})
}

// A name of files has all its paths, and no other name has one.
func FuzzName(f *testing.F) {
	for _, name := range []string{"file-cert:/a~/b", "file-root:/a~/b", "file-root:system", Default, "file-cert:~", "file-root:~~"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		s := parse(name)
		if s == nil {
			return
		}
		again := pairPrefix + s.cert + pairSeparator + s.key
		if s.root != "" {
			again = rootPrefix + s.root
			if s.crl != "" {
				again += pairSeparator + s.crl
			}
		}
		if again != name || s.root == "" && (s.cert == "" || s.key == "") {
			t.Errorf("%q is read as %+v", name, s)
		}
	})
}
