package echo

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"

	"fairlead.dev/tests/scenarios/internal/rawgrpc"
)

// serveXDS serves a port by a gRPC server that the control plane configures, until ctx ends.
func (p *port) serveXDS(ctx context.Context, lis net.Listener) error {
	creds, err := xdscreds.NewServerCredentials(xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return err
	}
	server, err := xds.NewGRPCServer(grpc.Creds(creds), grpc.UnknownServiceHandler(p.relay), grpc.ForceServerCodec(rawgrpc.Codec{}))
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, server.Stop)()
	if err := server.Serve(lis); ctx.Err() == nil {
		return fmt.Errorf("port %s: %w", p.Name, err)
	}
	return nil
}

// relay answers a call of any method as a request of the same content is answered.
func (p *port) relay(_ any, stream grpc.ServerStream) error {
	ctx := stream.Context()
	method, _ := grpc.MethodFromServerStream(stream)
	from, ok := peer.FromContext(ctx)
	if !ok || method == "" {
		return status.Error(codes.Internal, "a call from nowhere")
	}
	var raw []byte
	if err := stream.RecvMsg(&raw); err != nil {
		return err
	}
	c := &conn{raw: ends{local: from.LocalAddr, remote: from.Addr}, port: p, number: p.number(from.Addr.String()), at: time.Now(),
		tls: verified(from.AuthInfo)}
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(raw))), raw...) //nolint:gosec // limited by gRPC
	r := &http.Request{
		Method: http.MethodPost, RequestURI: method, URL: &url.URL{Opaque: method}, ProtoMajor: 2,
		Header: http.Header{"Content-Type": {GRPCType}},
		Body:   http.NoBody, ContentLength: int64(len(body)),
	}
	r.Body = readCloser{bytes.NewReader(body)}
	md, _ := metadata.FromIncomingContext(ctx)
	for name, values := range md {
		switch {
		case name == ":authority":
			r.Host = values[0]
		case !strings.HasPrefix(name, ":"):
			r.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	w := &recorder{header: http.Header{}}
	if !p.answered(w, r.WithContext(context.WithValue(ctx, connKey{}, c))) {
		return status.Error(codes.Unavailable, "cut")
	}
	return w.send(stream)
}

// answered is false if the connection is to be cut, which is one of many here.
func (p *port) answered(w http.ResponseWriter, r *http.Request) (answered bool) {
	defer func() {
		if e := recover(); e != nil && e != http.ErrAbortHandler { //nolint:errorlint // what net/http compares with
			panic(e)
		}
	}()
	p.serve(w, r)
	return true
}

// number is that of a connection of which gRPC tells with its calls only.
func (p *port) number(remote string) int {
	next := int(p.server.accepted.Load()) + 1
	known, loaded := p.server.peers.LoadOrStore(remote, next)
	if !loaded {
		p.server.accepted.Add(1)
	}
	n, _ := known.(int)
	return n
}

// verified is what gRPC knows of TLS.
func verified(auth credentials.AuthInfo) *TLS {
	info, ok := auth.(credentials.TLSInfo)
	if !ok {
		return nil
	}
	seen := tlsOf(info.State)
	if len(info.State.PeerCertificates) > 0 { // gRPC has verified it in its own way
		peer := info.State.PeerCertificates[0]
		seen.PeerSubject = peer.Subject.String()
		if len(peer.URIs) > 0 {
			seen.PeerURI = peer.URIs[0].String()
		}
	}
	return seen
}

type readCloser struct{ *bytes.Reader }

// Close implements io.Closer.
func (readCloser) Close() error { return nil }

// ends are all that there is of a connection that gRPC has.
type ends struct {
	net.Conn
	local, remote net.Addr
}

// LocalAddr implements net.Conn.
func (e ends) LocalAddr() net.Addr { return e.local }

// RemoteAddr implements net.Conn.
func (e ends) RemoteAddr() net.Addr { return e.remote }

// Close implements net.Conn; the connection is gRPC's.
func (ends) Close() error { return nil }

// recorder keeps an answer.
type recorder struct {
	header http.Header
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header { return r.header }

// Write implements http.ResponseWriter.
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(int) {}

// send answers the call.
func (r *recorder) send(stream grpc.ServerStream) error {
	md := metadata.MD{}
	for name, values := range r.header {
		switch lower := strings.ToLower(name); lower {
		case "content-type", "trailer", "grpc-status", "grpc-message":
		default:
			md[lower] = values
		}
	}
	if err := stream.SetHeader(md); err != nil {
		return err
	}
	if code, _ := strconv.Atoi(r.header.Get("Grpc-Status")); code != 0 {
		return status.Error(codes.Code(code), r.header.Get("Grpc-Message")) //nolint:gosec // one of gRPC's
	}
	raw := r.body.Bytes()
	if len(raw) < grpcHeader {
		return status.Error(codes.Internal, "no answer")
	}
	raw = raw[grpcHeader:]
	return stream.SendMsg(&raw)
}
