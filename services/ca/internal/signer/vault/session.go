package vault

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/vault/api"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/ca/internal/signer"
)

const (
	// retryPause is between two attempts to log in or to renew; a tenth of what is left of a token, if that is longer.
	retryPause = time.Second
	// A refused login is not repeated with the same credentials before firstHold has passed; each further refusal
	// doubles that, up to lastHold. Vault locks a role out for a quarter of an hour after five refusals.
	firstHold, lastHold = time.Second, time.Minute
	// filePoll is how often a token's file is looked at while nobody uses it.
	filePoll = 10 * time.Second
)

// session keeps the ca logged in. It is safe for concurrent use.
type session struct {
	cfg *Config
	// client makes a connection for each request, so that Vault sees the client certificate that the files have now.
	client *api.Client
	clock  clock.Clock
	log    *slog.Logger

	// turn is held by the one that logs in.
	turn chan struct{}
	// changed tells run that there is another grant.
	changed notify.Notifier

	mu      sync.Mutex
	current *grant
	// aliveAt is when Vault last said that the current token is valid.
	aliveAt time.Time
	held    *held
	// problem is the one that run found last.
	problem error
}

// held is a refused login.
type held struct {
	by    *credentials
	err   *signer.Error
	pause time.Duration
	until time.Time
}

// get returns a token that has not ended. It logs in if there is none, or if the one that there is is unless and is
// not valid at Vault any more.
func (s *session) get(ctx context.Context, unless *grant) (*grant, error) {
	if g := s.usable(unless); g != nil {
		return g, nil
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, fault(ctx.Err(), "log in")
	}
	if g := s.usable(unless); g != nil {
		return g, nil
	}
	if unless != nil && s.isCurrent(unless) && s.alive(ctx, unless) {
		return unless, nil
	}
	g, err := s.replace(ctx, unless)
	if last := s.lastGood(unless); err != nil && last != nil {
		return last, nil
	}
	return g, err
}

// lastGood is the current grant although its file has another token by now, which cannot be used; nil if it has ended.
func (s *session) lastGood(unless *grant) *grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.current; g != nil && !g.is(unless) && !g.over(s.clock.Now()) {
		return g
	}
	return nil
}

// usable is the current grant, if it can be used; nil otherwise.
func (s *session) usable(unless *grant) *grant {
	s.mu.Lock()
	g := s.current
	s.mu.Unlock()
	if g == nil || g.is(unless) || g.over(s.clock.Now()) {
		return nil
	}
	if t := s.cfg.Auth.Token; t != nil {
		// A token that was exchanged is used at once. One whose file cannot be read lives on.
		if token, err := readSecret("auth.token.file", t.File); err == nil && token != g.token {
			return nil
		}
	}
	return g
}

func (s *session) isCurrent(g *grant) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current != nil && s.current.is(g) && !s.current.over(s.clock.Now())
}

// alive tells whether a token with which Vault refused something is valid: then its policies refuse, and another login
// gets no better one. The caller has the turn.
func (s *session) alive(ctx context.Context, g *grant) bool {
	now := s.clock.Now()
	s.mu.Lock()
	recently := now.Sub(s.aliveAt) < retryPause
	s.mu.Unlock()
	if recently {
		return true
	}
	if s.cfg.Auth.Token != nil {
		return false // The login is the same question.
	}
	answer, err := g.as(s.client).Logical().ReadWithContext(ctx, "auth/token/lookup-self")
	if err != nil || answer == nil {
		// A token that may not ask is taken for valid while it is new.
		return !forbidden(err) || now.Sub(g.since) < retryPause
	}
	s.mu.Lock()
	s.aliveAt = now
	s.mu.Unlock()
	return true
}

// forbidden tells a request that Vault refused for its token, or for its policies.
func forbidden(err error) bool {
	answer, ok := errors.AsType[*api.ResponseError](err)
	return ok && answer.StatusCode == http.StatusForbidden
}

// replace logs in with what the files have now. unless is a grant that is not valid any more. The caller has the turn.
func (s *session) replace(ctx context.Context, unless *grant) (*grant, error) {
	c, err := readCredentials(&s.cfg.Auth)
	if err != nil {
		return nil, fault(err, "log in")
	}
	if err := s.refusedBefore(c); err != nil {
		return nil, err
	}
	g, err := s.login(ctx, c)
	if err != nil {
		s.hold(c, err)
		if s.lastGood(unless) != nil {
			s.log.Warn("the ca cannot log in at Vault again; the token that it has is used until it ends", "err", err)
		}
		return nil, err
	}
	s.set(g)
	return g, nil
}

func (s *session) set(g *grant) {
	s.mu.Lock()
	s.current, s.held, s.aliveAt = g, nil, g.since
	s.mu.Unlock()
	s.changed.Notify()
}

func (s *session) refusedBefore(c *credentials) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil || !c.same(s.held.by) {
		return nil
	}
	left := s.held.until.Sub(s.clock.Now())
	if left <= 0 {
		return nil
	}
	return &signer.Error{Fault: s.held.err.Fault, RetryAfter: left, Err: s.held.err.Err}
}

func (s *session) hold(c *credentials, err error) {
	refused, ok := errors.AsType[*signer.Error](err)
	if !ok || refused.Fault != signer.Refused {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pause := firstHold
	if s.held != nil && c.same(s.held.by) {
		pause = min(2*s.held.pause, lastHold)
	}
	s.held = &held{by: c, err: refused, pause: pause, until: s.clock.Now().Add(pause)}
}

// run logs in, and keeps the token valid, until ctx ends.
func (s *session) run(ctx context.Context) {
	said := ""
	for {
		changed := s.changed.Changed()
		pause, err := s.keep(ctx)
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		s.problem = err
		s.mu.Unlock()
		if now := errorText(err); now != said {
			if said = now; err != nil {
				s.log.Warn("the ca is not logged in at Vault, or will not be for long", "err", err)
			} else {
				s.log.Info("logged in at Vault again")
			}
		}
		timer := s.clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		case <-changed:
			timer.Stop()
		}
	}
}

// trouble is why the ca is not logged in, or will not be for long; nil if it is.
func (s *session) trouble() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// keep logs in, or renews the token if that is due. It returns when to come again.
func (s *session) keep(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout.Duration)
	defer cancel()
	g, err := s.get(ctx, nil)
	if err != nil {
		pause := retryPause
		if refused, ok := errors.AsType[*signer.Error](err); ok && refused.Fault == signer.Refused {
			pause = max(pause, refused.RetryAfter)
		}
		return pause, err
	}
	now := s.clock.Now()
	if due := g.renewAt(); !due.IsZero() && !now.Before(due) {
		if g, err = s.renew(ctx, g); err != nil {
			return max(retryPause, g.ends().Sub(now)/10), err
		}
	}
	if g.final {
		err = signer.Errorf(signer.Refused, "the token of auth.token.file (%s) ends at %s and cannot be renewed; write a new one into the file",
			s.cfg.Auth.Token.File, g.ends().UTC().Format(time.RFC3339))
	}
	pause := lastHold
	if due := g.renewAt(); !due.IsZero() {
		pause = max(due.Sub(s.clock.Now()), retryPause)
	}
	if s.cfg.Auth.Token != nil {
		pause = min(pause, filePoll)
	}
	return pause, err
}

// renew lengthens the life of a token, or logs in anew if that is not possible. It returns the grant to use, which is g
// in case of an error.
func (s *session) renew(ctx context.Context, g *grant) (*grant, error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if !s.isCurrent(g) {
		return g, nil // Somebody else has logged in; run comes again at once.
	}
	if g.renewable {
		began := s.clock.Now()
		answer, err := g.as(s.client).Logical().WriteWithContext(ctx, "auth/token/renew-self", map[string]any{})
		var renewed *grant
		if err == nil {
			renewed, err = readGrant(answer, g.token, began)
		}
		if err == nil && renewed.ttl*2 > g.first {
			renewed.first = g.first
			s.set(renewed)
			return renewed, nil
		}
		if err != nil {
			if failed := fault(err, "renew the token", g.token); failed.Fault != signer.Refused {
				return g, failed
			}
		}
	}
	if s.cfg.Auth.Token != nil {
		last := *g
		last.final = true
		s.set(&last)
		return &last, nil
	}
	next, err := s.replace(ctx, nil)
	if err != nil {
		return g, err
	}
	return next, nil
}
