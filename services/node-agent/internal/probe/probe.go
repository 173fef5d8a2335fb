// Package probe asks an application whether it is well, by HTTP, TCP, gRPC's health service or a command, as kubelet
// does. Package appprobe calls it for kubelet's probes, package health for those of a WorkloadGroup.
package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Source addresses of probes, those of Envoy's inbound connections: the rules of redirection let connections from them
// pass to the application, not to the proxy.
var (
	passthroughV4 = netip.AddrFrom4([4]byte{127, 0, 0, 6})
	passthroughV6 = netip.AddrFrom16([16]byte{15: 6})
)

// lingerSeconds is how long a closed connection of a probe keeps its port, as with kubelet: by default it is a minute,
// and a machine with many probes runs out of ports.
const lingerSeconds = 1

// Dialer connects to the workload's own address for probes. It is safe for concurrent use.
type Dialer struct {
	// V6 chooses the source address; it must be the family of the addresses that are dialled.
	V6 bool
}

// DialContext dials from the source address that redirection lets pass. If the machine does not have it (::6 is there
// only with rules of redirection) it dials from any.
func (d Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	source := passthroughV4
	if d.V6 {
		source = passthroughV6
	}
	dialer := net.Dialer{
		LocalAddr: &net.TCPAddr{IP: source.AsSlice()},
		Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) {
				// Without the option the probe works too.
				_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: lingerSeconds})
			})
		},
	}
	conn, err := dialer.DialContext(ctx, network, address)
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		dialer.LocalAddr = nil
		return dialer.DialContext(ctx, network, address)
	}
	return conn, err
}

// TCP returns nil if the address accepts a connection.
func (d Dialer) TCP(ctx context.Context, address string) error {
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// maxHealthResponse bounds the answer of a gRPC server, which is a few bytes.
const maxHealthResponse = 4 << 10

// GRPC returns nil if grpc.health.v1.Health at the address says SERVING for the service. The connection is in the
// clear.
func (d Dialer) GRPC(ctx context.Context, address, service, userAgent string) error {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxHealthResponse)),
	}
	if userAgent != "" {
		options = append(options, grpc.WithUserAgent(userAgent))
	}
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return fmt.Errorf("%s does not serve grpc.health.v1.Health: %w", address, err)
	case err != nil:
		return err
	case answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING:
		return fmt.Errorf("service %q is %s", service, answer.GetStatus())
	}
	return nil
}

// maxOutput bounds the output of a command in an error.
const maxOutput = 256

// Exec returns nil if the command ends with status 0. When ctx ends, the command's whole process group is killed.
func Exec(ctx context.Context, command []string) error {
	if len(command) == 0 {
		return errors.New("no command")
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	out := &head{max: maxOutput}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		if cause := ctx.Err(); cause != nil {
			return fmt.Errorf("%s: %w", command[0], cause)
		}
		if text := strings.TrimSpace(string(out.kept)); text != "" {
			return fmt.Errorf("%s: %w: %s", command[0], err, text)
		}
		return fmt.Errorf("%s: %w", command[0], err)
	}
	return nil
}

// head is a writer that keeps the first bytes.
type head struct {
	kept []byte
	max  int
}

// Write implements io.Writer.
func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), h.max-len(h.kept))]...)
	return len(p), nil
}
