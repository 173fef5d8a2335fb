package vault

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
)

func TestRealSealedAndStopped(t *testing.T) {
	s := ownServer(t)
	mount, root := s.pki(t, "ec")
	s.role(t, mount, nil)
	cfg, _ := s.newToken(t, mount, api.TokenCreateRequest{})
	i := newTestIssuer(t, cfg, deps(t))
	testkit.Background(t, i.Run)
	a := announcedAuthorities(t, i, nil)
	testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), root))

	testkit.NoError(t, s.root.Sys().SealWithContext(t.Context()))
	_, err := i.Issue(t.Context(), request(t))
	wantFault(t, err, signer.Away, "sealed")
	_, err = newTestIssuer(t, cfg, deps(t)).Issue(t.Context(), request(t))
	wantFault(t, err, signer.Away, "sealed")
	testkit.Eventually(t, testkit.Patience, func() error { // Run looks in vain
		if i.Problem() == nil {
			return errors.New("Run has not looked yet")
		}
		return nil
	})
	if now, _ := i.Authorities(); now != a {
		t.Error("a sealed Vault changed the authorities")
	}
	s.unseal(t)
	testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), root))

	s.stop()
	_, err = i.Issue(t.Context(), request(t))
	wantFault(t, err, signer.Away)
	s.start(t, vaultBinary(t))
	testkit.Eventually(t, testkit.Patience, func() error {
		_, err := i.Issue(t.Context(), request(t))
		if err == nil {
			return errors.New("a Vault that starts sealed has signed")
		}
		if !strings.Contains(err.Error(), "sealed") {
			return err
		}
		return nil
	})
	s.unseal(t)
	testkit.NoError(t, issueAndCheck(t.Context(), i, request(t), root))
}

// TestRealSlow: a Vault that answers after 30 s is away after the timeout.
func TestRealSlow(t *testing.T) {
	s := sharedServer(t)
	mount, _ := s.pki(t, "ec")
	s.role(t, mount, nil)
	cfg, _ := s.newToken(t, mount, api.TokenCreateRequest{})
	cfg.Address = "https://" + delayed(t, s.address, 30*time.Second)
	cfg.Timeout.Duration = time.Second
	i := newTestIssuer(t, cfg, deps(t))
	began := time.Now()
	_, err := i.Issue(t.Context(), request(t))
	wantFault(t, err, signer.Away, "no answer in time")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began = time.Now()
	_, err = i.Issue(ctx, request(t))
	wantFault(t, err, signer.Away, "no answer in time")
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %s", took)
	}
}

// delayed forwards connections; what the server says arrives late.
func delayed(t *testing.T, to string, by time.Duration) string {
	t.Helper()
	lis, err := net.Listen("tcp", testkit.FreeAddress(t).String())
	testkit.NoError(t, err)
	end := make(chan struct{})
	t.Cleanup(func() { close(end); lis.Close() })
	go func() {
		for {
			client, err := lis.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				return
			}
			go func() { <-end; client.Close(); server.Close() }()
			go copyAfter(server, client, 0, end)
			go copyAfter(client, server, by, end)
		}
	}()
	return lis.Addr().String()
}

func copyAfter(to, from net.Conn, by time.Duration, end <-chan struct{}) {
	p := make([]byte, 32<<10)
	for {
		n, err := from.Read(p)
		if err != nil {
			to.Close()
			return
		}
		select {
		case <-time.After(by):
		case <-end:
			return
		}
		if _, err := to.Write(p[:n]); err != nil {
			return
		}
	}
}
