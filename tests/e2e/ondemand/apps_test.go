package ondemand

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/emptypb"

	"fairlead.dev/tests/e2e/internal/hostmesh"
)

// seen is what the HTTP application answers with.
type seen struct {
	Pod  string `json:"pod"`
	Host string `json:"host"`
	XFCC string `json:"xfcc"`
	Size int64  `json:"size"`
}

const greeting = "220 hello\r\n"

// serve runs all applications on a host.
func serve(t *testing.T, h *hostmesh.Host, name string) {
	t.Helper()
	serveHTTP(h.Listen(8080), name)
	serveTCP(h.Listen(9090), func(conn net.Conn) {
		buf := make([]byte, 1024)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			fmt.Fprintf(conn, "%s: %s", name, buf[:n])
		}
	})
	serveTCP(h.Listen(9091), func(conn net.Conn) {
		_, _ = io.WriteString(conn, greeting)
		_, _ = io.Copy(io.Discard, conn)
	})
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		// Any other method answers each message with itself, while the client's stream is open.
		for {
			m := &emptypb.Empty{}
			if err := stream.RecvMsg(m); err != nil {
				return nil //nolint:nilerr // the client is done
			}
			if err := stream.SendMsg(m); err != nil {
				return err
			}
		}
	}))
	healthv1.RegisterHealthServer(server, health.NewServer())
	lis := h.Listen(7070)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
}

func serveHTTP(lis net.Listener, name string) {
	go func() {
		_ = http.Serve(lis, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			shadows.Store(r.Host, true)
			if r.Header.Get("Upgrade") != "" {
				upgrade(w)
				return
			}
			size, err := io.Copy(io.Discard, r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			_ = json.NewEncoder(w).Encode(seen{Pod: name, Host: r.Host, XFCC: r.Header.Get("X-Forwarded-Client-Cert"), Size: size})
		}))
	}()
}

// shadows are the hosts that requests were for: mirrored ones have a suffix of their own.
var shadows sync.Map

// upgrade switches to a protocol that answers each byte with itself.
func upgrade(w http.ResponseWriter) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
	_, _ = io.Copy(conn, buffered)
}

func serveTCP(lis net.Listener, answer func(net.Conn)) {
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				answer(conn)
			}()
		}
	}()
}
