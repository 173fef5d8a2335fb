// Command program is a gRPC program that speaks xDS itself, as users write them: a server, or a client that calls what
// it is told over HTTP.
//
//	program server <version>          an echo server on $HOST:$PORT, plain gRPC
//	program xds-server <version>      the same, configured by xDS
//	program client                    GET /call?target=xds:///server:7070&n=10&header=k:v&timeout=5s on $HOST:$PORT
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// method takes and returns a StringValue; what it returns holds a seen.
const (
	service = "fairlead.test.Echo"
	method  = "/" + service + "/Call"
)

// seen is what the server saw of a call.
type seen struct {
	Pod     string `json:"pod"`
	Version string `json:"version"`
	// Peer is the identity in the caller's certificate; empty without TLS. Behind a sidecar it is what that says of its
	// own caller.
	Peer string `json:"peer"`
	TLS  bool   `json:"tls"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "program:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	address := net.JoinHostPort(os.Getenv("HOST"), os.Getenv("PORT"))
	switch {
	case len(args) == 2 && args[0] == "server":
		return serve(ctx, address, grpc.NewServer(), args[1])
	case len(args) == 2 && args[0] == "xds-server":
		if err := bootstrapped(ctx); err != nil {
			return err
		}
		creds, err := xdscreds.NewServerCredentials(xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
		if err != nil {
			return err
		}
		server, err := xds.NewGRPCServer(grpc.Creds(creds))
		if err != nil {
			return err
		}
		return serve(ctx, address, server, args[1])
	case len(args) == 1 && args[0] == "client":
		if err := bootstrapped(ctx); err != nil {
			return err
		}
		return control(ctx, address)
	default:
		return fmt.Errorf("arguments %q", args)
	}
}

// bootstrapped waits for the file that the agent writes.
func bootstrapped(ctx context.Context) error {
	for {
		if _, err := os.Stat(os.Getenv("GRPC_XDS_BOOTSTRAP")); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// server is what grpc.Server and xds.GRPCServer have in common.
type server interface {
	grpc.ServiceRegistrar
	Serve(net.Listener) error
	GracefulStop()
	Stop()
}

func serve(ctx context.Context, address string, s server, version string) error {
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "Call", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				if err := decode(&wrapperspb.StringValue{}); err != nil {
					return nil, err
				}
				answer, err := json.Marshal(look(ctx, version))
				return wrapperspb.String(string(answer)), err
			}}},
	}, nil)
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		hard := time.AfterFunc(5*time.Second, s.Stop)
		defer hard.Stop()
		s.GracefulStop()
	})
	defer stop()
	return s.Serve(lis)
}

func look(ctx context.Context, version string) seen {
	out := seen{Pod: os.Getenv("POD_NAME"), Version: version}
	p, _ := peer.FromContext(ctx)
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if out.TLS = ok; ok && len(info.State.PeerCertificates) > 0 && len(info.State.PeerCertificates[0].URIs) > 0 {
		out.Peer = info.State.PeerCertificates[0].URIs[0].String()
	}
	for _, forwarded := range metadata.ValueFromIncomingContext(ctx, "x-forwarded-client-cert") {
		if _, uri, ok := strings.Cut(forwarded, "URI="); ok {
			out.Peer, _, _ = strings.Cut(uri, ";")
		}
	}
	return out
}

// result is the answer of /call.
type result struct {
	Seen   []seen   `json:"seen"`
	Errors []string `json:"errors"`
}

// caller keeps a channel per target, so that it is one channel that follows changes.
type caller struct {
	mu       sync.Mutex
	channels map[string]*grpc.ClientConn
}

func control(ctx context.Context, address string) error {
	c := &caller{channels: map[string]*grpc.ClientConn{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /call", func(w http.ResponseWriter, r *http.Request) {
		out, err := c.call(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(out)
	})
	srv := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (c *caller) call(r *http.Request) (*result, error) {
	q := r.URL.Query()
	n, err := strconv.Atoi(q.Get("n"))
	if err != nil {
		return nil, err
	}
	timeout, err := time.ParseDuration(q.Get("timeout"))
	if err != nil {
		return nil, err
	}
	conn, err := c.channel(q.Get("target"))
	if err != nil {
		return nil, err
	}
	ctx := r.Context()
	if k, v, ok := strings.Cut(q.Get("header"), ":"); ok {
		ctx = metadata.AppendToOutgoingContext(ctx, k, v)
	}
	out := &result{}
	for range n {
		answer, err := once(ctx, conn, timeout)
		if err != nil {
			out.Errors = append(out.Errors, err.Error())
			continue
		}
		out.Seen = append(out.Seen, answer)
	}
	return out, nil
}

func once(ctx context.Context, conn *grpc.ClientConn, timeout time.Duration) (seen, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, out := &wrapperspb.StringValue{}, seen{}
	if err := conn.Invoke(ctx, method, wrapperspb.String("hello"), answer); err != nil {
		return out, err
	}
	return out, json.Unmarshal([]byte(answer.GetValue()), &out)
}

func (c *caller) channel(target string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.channels[target]; conn != nil {
		return conn, nil
	}
	creds, err := xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	if err == nil {
		c.channels[target] = conn
	}
	return conn, err
}
