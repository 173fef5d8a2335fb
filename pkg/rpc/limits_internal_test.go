package rpc

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/auth"
)

func config() ServerConfig {
	return ServerConfig{Service: "s", Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Insecure: true}
}

func TestEveryLimitHasADefault(t *testing.T) {
	for name, change := range map[string]func(*ServerConfig){
		"as it is":               func(*ServerConfig) {},
		"with identities":        func(c *ServerConfig) { c.Authenticator = auth.MTLS() },
		"for few":                func(c *ServerConfig) { c.Authenticator, c.MaxConnections = auth.MTLS(), 1 },
		"as the ca":              func(c *ServerConfig) { c.Authenticator, c.MaxRecvBytes = auth.MTLS(), 64<<10 },
		"as an agent's, by user": func(c *ServerConfig) { c.PeerUIDs, c.MaxConnections = []uint32{1}, 64 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config()
			change(&cfg)
			if err := cfg.complete(); err != nil {
				t.Fatal(err)
			}
			l := cfg.limits()
			for what, n := range map[string]int{
				"connections": l.connections, "connections of an identity": l.connectionsPerIdentity, "calls of an identity": l.callsPerIdentity,
				"unauthenticated": l.unauthenticated, "unauthenticated of an address": l.unauthenticatedPerAddress,
				"bytes of an identity": l.identityBytes,
				"bytes":                l.serverBytes, "bytes of a message": l.message, "time without authentication": int(l.unauthenticatedTimeout),
				"time of a message": int(l.messageTimeout), "grace": int(cfg.MaxConnectionAgeGrace),
			} {
				if n <= 0 {
					t.Errorf("%s: no limit", what)
				}
			}
			if l.connectionsPerIdentity > l.connections || l.unauthenticatedPerAddress > l.unauthenticated || l.message >= l.identityBytes {
				t.Errorf("a part is more than the whole: %+v", l)
			}
			if aged := cfg.MaxConnectionAge == DefaultMaxConnectionAge; aged == (len(cfg.PeerUIDs) > 0) {
				t.Errorf("connections live for %s", cfg.MaxConnectionAge)
			}
		})
	}
	for name, change := range map[string]func(*ServerConfig){
		"negative":                func(c *ServerConfig) { c.MaxUnauthenticated = -1 },
		"negative time":           func(c *ServerConfig) { c.MessageTimeout = -time.Second },
		"no room for one message": func(c *ServerConfig) { c.MaxIdentityBytes = c.MaxRecvBytes + 1 },
	} {
		cfg := config()
		change(&cfg)
		if err := cfg.complete(); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	never := config()
	never.MaxConnectionAge = -1
	if err := never.complete(); err != nil || never.MaxConnectionAge != 0 {
		t.Errorf("for ever: %v, gRPC is told %s", err, never.MaxConnectionAge)
	}
}
