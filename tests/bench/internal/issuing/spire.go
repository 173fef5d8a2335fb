package issuing

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/bench/internal/wire"
	"fairlead.dev/tests/internal/process"
)

// SPIRE is a running server of SPIRE. It has a key and an intermediate of its own, below the authority's.
type SPIRE struct {
	*machine.Process

	socket string
}

const spireConfig = `
server {
  bind_address = "127.0.0.1"
  bind_port = "%[1]s"
  socket_path = "%[2]s/api.sock"
  trust_domain = "cluster.local"
  data_dir = "%[2]s"
  log_level = "ERROR"
  ca_ttl = "24h"
  default_x509_svid_ttl = "4h"
}
plugins {
  DataStore "sql" { plugin_data { database_type = "sqlite3", connection_string = "%[2]s/db.sqlite3" } }
  NodeAttestor "join_token" { plugin_data {} }
  KeyManager "memory" { plugin_data = {} }
  UpstreamAuthority "disk" { plugin_data { key_file_path = "%[3]s", cert_file_path = "%[4]s", bundle_file_path = "%[5]s" } }
}
`

// StartSPIRE runs a server.
func StartSPIRE(ctx context.Context, program string, a *Authority, on *unix.CPUSet) (*SPIRE, error) {
	dir, err := os.MkdirTemp("", "spire-") // short: the path of a socket has a limit
	if err != nil {
		return nil, err
	}
	ports, err := machine.FreePorts(1)
	if err != nil {
		return nil, err
	}
	s := &SPIRE{socket: filepath.Join(dir, "api.sock")}
	file, log := filepath.Join(dir, "server.conf"), filepath.Join(filepath.Dir(a.Dir), "spire.log")
	if err := os.WriteFile(file, fmt.Appendf(nil, spireConfig, ports[0][len("127.0.0.1:"):], dir, a.File("ca-key.pem"), a.File("ca-cert.pem"),
		a.File("root-cert.pem")), 0o600); err != nil {
		return nil, err
	}
	if s.Process, err = machine.Start(process.Program{
		Name: "SPIRE", Path: program, Args: []string{"run", "-config", file}, Stdout: log, Stderr: log,
	}, on); err != nil {
		return nil, err
	}
	err = s.Until(ctx, readyWithin, func() error { _, err := os.Stat(s.socket); return err })
	if err != nil {
		s.Stop()
	}
	return s, err
}

// Stop ends the server and removes its files.
func (s *SPIRE) Stop() {
	s.Process.Stop()
	_ = os.RemoveAll(filepath.Dir(s.socket))
}

// Clients ask as local administrators do, without TLS and with nothing to verify but the request: this is the least
// that SPIRE does for a certificate. An agent's request costs it more.
func (s *SPIRE) Clients(ctx context.Context, workloads []*Workload) ([]Ask, error) {
	out := make([]Ask, 0, len(workloads))
	for _, w := range workloads {
		conn, err := grpc.NewClient("unix://"+s.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wire.Codec{})))
		if err != nil {
			return nil, err
		}
		block, _ := pem.Decode([]byte(w.CSR))
		// spire.api.server.svid.v1.MintX509SVIDRequest: csr.
		request := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), block.Bytes)
		ask := func(ctx context.Context) error {
			var answer wire.Message
			if err := conn.Invoke(ctx, "/spire.api.server.svid.v1.SVID/MintX509SVID", wire.Parts{request}, &answer); err != nil {
				return err
			}
			defer answer.Free()
			if len(answer.Body) < 300 {
				return errors.New("an answer without a certificate")
			}
			return nil
		}
		if err := ask(ctx); err != nil {
			return nil, fmt.Errorf("SPIRE: %w: %s", err, s.LogTail())
		}
		out = append(out, ask)
	}
	return out, nil
}
