package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"fairlead.dev/pkg/testkit"
)

// Without an Envoy the agent serves gRPC programs: it writes what their
// bootstrap names, relays a stream for each of them, and ends after them.
func TestPrograms(t *testing.T) {
	m := newMesh(t)
	m.set("1", nil, nil)
	ca, _ := m.ca("", time.Hour)
	xds, seen, _ := m.xds("")
	p := m.start(ca, xds, "ISTIO_META_GENERATOR=grpc", "TERMINATION_DRAIN_DURATION_SECONDS=15")
	testkit.Eventually(t, testkit.Patience, func() error {
		status, body, err := get(p.url(15020, "/healthz/ready"))
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d: %s", status, body)
		}
		return err
	})
	var bootstrap struct {
		Servers []struct {
			URI string `json:"server_uri"`
		} `json:"xds_servers"`
		Node struct {
			ID       string         `json:"id"`
			Metadata map[string]any `json:"metadata"`
		} `json:"node"`
		Providers map[string]struct {
			Config map[string]string `json:"config"`
		} `json:"certificate_providers"`
	}
	raw, err := os.ReadFile(filepath.Join(p.config.StateDir, "grpc-bootstrap.json"))
	if err == nil {
		err = json.Unmarshal(raw, &bootstrap)
	}
	if err != nil {
		t.Fatal(err)
	}
	if bootstrap.Node.Metadata["GENERATOR"] != "grpc" {
		t.Errorf("metadata %v", bootstrap.Node.Metadata)
	}
	for _, name := range []string{"certificate_file", "private_key_file", "ca_certificate_file"} {
		if _, err := os.Stat(bootstrap.Providers["default"].Config[name]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	conn, err := grpc.NewClient(bootstrap.Servers[0].URI, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	const programs = 12
	for i := range programs {
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
		if err == nil {
			err = stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: bootstrap.Node.ID}, TypeUrl: resource.ClusterType})
		}
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
	}
	if opened, _, _ := seen.get(); opened != programs {
		t.Errorf("%d streams reached the xds-server, want %d", opened, programs)
	}

	p.stop()
	p.wantLog("draining", 1)
	if status, _, err := get(p.url(15020, "/healthz/ready")); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("ready while draining: %d %v", status, err)
	}
	select {
	case err := <-p.ended:
		t.Fatalf("ended before its programs: %v", err)
	default:
	}
	cancel()
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}
