package authn

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/testkit"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fixed is an authenticator that gives every caller the same result.
type fixed struct {
	peer auth.Peer
	err  error
}

func (f fixed) Authenticate(context.Context) (auth.Peer, error) { return f.peer, f.err }

func connection(t *testing.T, leaf *x509.Certificate) context.Context {
	t.Helper()
	info := credentials.TLSInfo{State: tls.ConnectionState{}}
	if leaf != nil {
		info.State.PeerCertificates = []*x509.Certificate{leaf}
	}
	return peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, AuthInfo: info})
}

func TestFailedAuthenticationIsCountedAndLoggedWithinLimits(t *testing.T) {
	var log bytes.Buffer
	count := 0
	clock := testkit.NewClock(start)
	rejecting := Audited(fixed{err: errors.New("token has expired")}, slog.New(slog.NewJSONHandler(&log, nil)), func() { count++ }, clock)
	for range 1000 {
		if _, err := rejecting.Authenticate(connection(t, nil)); err == nil {
			t.Fatal("let through")
		}
	}
	if lines := strings.Count(log.String(), "\n"); count != 1000 || lines != linesAtOnce {
		t.Errorf("%d counted and %d lines, want 1000 and %d", count, lines, linesAtOnce)
	}
	if !strings.Contains(log.String(), "token has expired") || !strings.Contains(log.String(), "127.0.0.1") {
		t.Errorf("the line does not say why and from where: %s", log.String())
	}
	clock.Advance(time.Second)
	log.Reset()
	if _, err := rejecting.Authenticate(t.Context()); err == nil || log.Len() == 0 {
		t.Errorf("no line a second later: %v", err)
	}
	if _, err := Audited(fixed{}, slog.New(slog.DiscardHandler), func() { t.Error("counted") }, clock).Authenticate(t.Context()); err != nil {
		t.Error(err)
	}
}
