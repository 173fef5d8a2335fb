package app

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/node-agent/internal/sds"
	"fairlead.dev/services/node-agent/internal/statedir"
)

// The sockets admit this user; a server that admits another one gives this one
// nothing.
func TestSocketsAreForOneUser(t *testing.T) {
	own := uint32(os.Geteuid())
	for _, tc := range []struct {
		name  string
		admit uint32
		want  codes.Code
	}{
		{"own user", own, codes.Unimplemented}, // reached: FetchSecrets does not exist
		{"another user", own + 1, codes.Unavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, err := statedir.Open(filepath.Join(t.TempDir(), "state"))
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			server := sds.New(sds.Config{Source: testkit.PKI(t).NewSVID("shop", "web"), Log: testkit.Logger(t),
				Registerer: prometheus.NewRegistry()})
			cfg := serverConfig("sds", 1<<20)
			if !slices.Equal(cfg.PeerUIDs, []uint32{own}) {
				t.Errorf("admits users %v, want %d alone", cfg.PeerUIDs, own)
			}
			cfg.PeerUIDs = []uint32{tc.admit}
			p := service.New(service.Options{}, service.Deps{Log: testkit.Logger(t), Registry: prometheus.NewRegistry()})
			if err := serveSocket(p, dir, statedir.SDS, server.Register, cfg); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- p.Run(ctx) }()
			conn, err := grpc.NewClient("unix://"+dir.Path(statedir.SDS), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := secretv3.NewSecretDiscoveryServiceClient(conn).FetchSecrets(ctx, nil); status.Code(err) != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
