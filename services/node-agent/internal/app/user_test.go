package app_test

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/node-agent/internal/agenttest"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/sds"
	"fairlead.dev/services/node-agent/internal/statedir"
)

// Another user of the machine can open none of the agent's files and sockets, and gets no secret even where the
// permissions of the directories are lost: the kernel says who asks.
func TestAnotherUserReadsNoKeyAndNoSocket(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	dir := shortDir(t)
	out := filepath.Join(dir, "certs")
	m.configure = func(c *config.Config) { c.CacheCertificate = true }
	p := m.startIn(filepath.Join(dir, "state"), ca, xds, "OUTPUT_CERTS="+out)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.wantReady()
	p.wantLog("the workload's certificate files are written", 1)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var files, sockets []string
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.Type()&fs.ModeSocket != 0:
			sockets = append(sockets, path)
		case e.Type().IsRegular():
			files = append(files, path)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(files) < 5 || len(sockets) < 3 {
		t.Fatalf("%d files and %d sockets: want those of the agent", len(files), len(sockets))
	}
	tryAll := func(when string) {
		t.Helper()
		agenttest.As(t, agenttest.AnotherUser, func() {
			for _, path := range files {
				if f, err := os.Open(path); err == nil {
					_ = f.Close()
					t.Errorf("%s another user opens %s", when, path)
				}
			}
			for _, path := range sockets {
				if conn, err := net.Dial("unix", path); err == nil {
					_ = conn.Close()
					t.Errorf("%s another user connects to %s", when, path)
				}
			}
		})
	}
	tryAll("at first")
	for _, path := range []string{filepath.Join(dir, "state"), out} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tryAll("with open directories")

	socket := filepath.Join(dir, "state", statedir.SDS)
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[int]codes.Code{agenttest.AnotherUser: codes.Unavailable, os.Geteuid(): codes.OK} {
		if got := status.Code(askSecret(t, socket, uid)); got != want {
			t.Errorf("user %d gets %s with an open socket, want %s", uid, got, want)
		}
	}
}

// askSecret asks for the workload's key as a user.
func askSecret(t *testing.T, socket string, uid int) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (conn net.Conn, err error) {
			agenttest.As(t, uid, func() { conn, err = net.Dial("unix", socket) })
			return conn, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: sds.TypeURL, ResourceNames: []string{sds.Default}}); err != nil {
		_, err = stream.Recv()
		return err
	}
	got, err := stream.Recv()
	if err == nil && len(got.GetResources()) != 1 {
		err = fmt.Errorf("%d secrets", len(got.GetResources()))
	}
	return err
}
