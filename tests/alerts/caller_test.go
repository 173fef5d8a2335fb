package alerts

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/controlplane"
)

// anyServer is TLS towards whichever server: whom it talks to is not what these tests are about.
func anyServer(own *tls.Certificate) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	if own != nil {
		c.Certificates = []tls.Certificate{*own}
	}
	return c
}

// byToken is a connection as a service account, with a token.
func byToken(t *testing.T, p *controlplane.Plane, address, namespace, account string) *grpc.ClientConn {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := p.WriteToken(file, 0, namespace, account, contract.TokenAudience); err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(rpc.ClientConfig{Target: address, TLS: anyServer(nil), TokenFile: file})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test is over
	return conn
}

// byCertificate is a connection with the certificate that the ca issues to a service account.
func byCertificate(t *testing.T, p *controlplane.Plane, address, namespace, account string) *grpc.ClientConn {
	t.Helper()
	cert := certificate(t, byToken(t, p, p.CA.GRPC, namespace, account))
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(anyServer(cert))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test is over
	return conn
}

// certificate asks the ca for one, until it answers.
func certificate(t *testing.T, conn *grpc.ClientConn) *tls.Certificate {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	return testkit.Must(testkit.Must(controlplane.NewRequest())(t).Send(ctx, conn, 0))(t)
}

// often does something many times, by several at once, and ends with the first error.
func often(t *testing.T, times int, do func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	const workers = 8
	failed := make(chan error, workers)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range times / workers {
				if err := do(ctx); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
}

// hangUp opens connections that send what is no TLS.
func hangUp(address string) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
			return err
		}
		_, err = conn.Read(make([]byte, 64)) // an alert of TLS, or the end
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return err
		}
		return nil
	}
}

// strangers provokes what every service's port can show: calls of those who may not make them, and connections that
// are none. call is made with each of several connections, since a server ends one that is refused often.
func (l *lab) strangers(service, address string, dial func(t *testing.T) *grpc.ClientConn,
	call func(ctx context.Context, conn *grpc.ClientConn) error) {
	l.t.Helper()
	l.provoke(fault{service: service, alerts: []string{"CallersRefused"}, make_: func(t *testing.T) func() {
		for range 24 {
			conn := dial(t)
			often(t, 96, func(ctx context.Context) error {
				switch err := call(ctx, conn); status.Code(err) {
				case codes.PermissionDenied, codes.Unauthenticated:
					return nil
				case codes.OK:
					return errors.New("a stranger was let in")
				default:
					return err
				}
			})
			_ = conn.Close() // it has done its part
		}
		return nil
	}})
	l.provoke(fault{service: service, alerts: []string{"ConnectionsRejected"}, make_: func(t *testing.T) func() {
		often(t, 2400, hangUp(address))
		return nil
	}})
}
