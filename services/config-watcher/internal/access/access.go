// Package access decides which identity may use which verb on objects of the config API. Access reads roles from the
// file of --roles-file; package storeapi calls May and Anywhere for each call, and Service implements AccessService.
package access

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/filewatch"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// rereadAfter is the interval of reading the file if no change was noticed.
const rereadAfter = 10 * time.Second

// Bans looks up banned identities; ban.Table implements it.
type Bans interface {
	Banned(identity string) *object.Ban
	Changed() <-chan struct{}
}

// Config of an Access. File and Root are optional.
type Config struct {
	// Admin is an administrator in addition to those of the file.
	Admin spiffeid.ID
	// TrustDomain completes identities that the file names as "<namespace>/<service account>".
	TrustDomain spiffeid.TrustDomain
	// File is the path of the roles file. If it is empty, only Admin has a role.
	File string
	// Root lists the namespaces whose objects apply to the whole mesh.
	Root func() []string
	Bans Bans

	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
}

// Access answers whether an identity may use a verb on an object. Its Notifier tells when the grants change, and not
// when bans do. It is safe for concurrent use.
type Access struct {
	notify.Notifier
	cfg Config

	mu     sync.Mutex
	grants map[string][]Grant // by identity
	broken string             // why the file cannot be used; empty if it can
	text   string             // content of the file when it was last read
}

// Grant allows an identity some verbs in some namespaces.
type Grant struct {
	// Role is empty if the file lists verbs. A list of verbs never makes an administrator.
	Role       string
	Verbs      []string
	Namespaces []string
}

// everywhere stands for all namespaces, and for objects without a namespace.
const everywhere = "*"

// New reads the file and returns an error if it cannot be used. Later errors leave the last good roles in force.
func New(cfg Config) (*Access, error) {
	a := &Access{cfg: cfg}
	if err := a.read(); err != nil {
		return nil, err
	}
	promauto.With(cfg.Registerer).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fairlead_config_watcher_roles_file_broken",
		Help: "1 if the file of roles cannot be used as it is now; its last good state is in force.",
	}, func() float64 {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.broken != "" {
			return 1
		}
		return 0
	})
	return a, nil
}

// Run follows changes of the file until ctx ends.
func (a *Access) Run(ctx context.Context) error {
	if a.cfg.File == "" {
		<-ctx.Done()
		return nil
	}
	filewatch.Follower{
		Files: func() []string { return []string{a.cfg.File} }, Clock: a.cfg.Clock, Log: a.cfg.Log,
		Read: func() time.Duration {
			_ = a.read() // read logs its error
			return rereadAfter
		},
	}.Run(ctx)
	return nil
}

// read loads the file and replaces the grants. After an error the grants stay; the error is logged once.
func (a *Access) read() error {
	text, grants, err := "", map[string][]Grant{}, error(nil)
	if a.cfg.File != "" {
		text, grants, err = load(a.cfg.File, a.cfg.TrustDomain)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		if a.broken != err.Error() {
			a.cfg.Log.Error("roles cannot be read; the last good ones stay in force", "error", err)
		}
		a.broken = err.Error()
		return err
	}
	a.broken = ""
	if a.grants != nil && text == a.text {
		return nil
	}
	grants[a.cfg.Admin.String()] = append(grants[a.cfg.Admin.String()], Grant{Role: Admin, Verbs: Verbs(), Namespaces: []string{everywhere}})
	if a.grants != nil {
		a.cfg.Log.Info("roles have changed", "identities", len(grants))
	}
	a.grants, a.text = grants, text
	a.Notify()
	return nil
}

// BansChanged returns a channel that is closed when the bans change.
func (a *Access) BansChanged() <-chan struct{} { return a.cfg.Bans.Changed() }

// Grants returns the grants of an identity.
func (a *Access) Grants(identity string) []Grant {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.grants[identity]
}

// DeniedError says why an identity may not do something, and how to change that.
type DeniedError struct{ Reason string }

// Error implements error.
func (e *DeniedError) Error() string { return e.Reason }

func denied(format string, args ...any) error { return &DeniedError{fmt.Sprintf(format, args...)} }

// remedy ends the messages of refusals that a role would lift.
const remedy = "; an administrator gives roles in the file of --roles-file"

// known returns nil if the identity is not banned and has at least one grant.
func (a *Access) known(identity string) error {
	if b := a.cfg.Bans.Banned(identity); b != nil {
		reason := ""
		if b.Reason != "" {
			reason = ": " + b.Reason
		}
		return denied("identity %s is banned from this mesh%s; an administrator lifts it with `fairlead config unban`", identity, reason)
	}
	if len(a.Grants(identity)) == 0 {
		return denied("identity %s has no role in the configuration API"+remedy, identity)
	}
	return nil
}

// Rule admits identities with at least one grant. The gRPC server checks it before it reads a message.
func (a *Access) Rule() auth.Rule { return rule{a} }

type rule struct{ access *Access }

// Allowed implements auth.Rule.
func (r rule) Allowed(p auth.Peer) bool {
	return !p.ID.IsZero() && r.access.known(p.ID.String()) == nil
}

// Why implements auth.Explainer.
func (r rule) Why(p auth.Peer) string {
	if err := r.access.known(p.ID.String()); err != nil {
		return err.Error()
	}
	return ""
}

// May returns nil if an identity may use a verb on an object. A key without a name stands for all objects of its kind
// and namespace. The error is a DeniedError that names identity, verb, object and remedy.
func (a *Access) May(identity, verb string, k object.Key) error {
	if err := a.known(identity); err != nil {
		return err
	}
	admin, all := false, false
	for _, g := range a.Grants(identity) {
		if !slices.Contains(g.Verbs, verb) {
			continue
		}
		everything := slices.Contains(g.Namespaces, everywhere)
		all, admin = all || everything, admin || g.Role == Admin
		if (slices.Contains(g.Namespaces, k.Namespace) && !a.meshWide(k.Namespace) || everything) &&
			(!writes(verb) || !kinds.IsIdentityBan(k) || admin) {
			return nil
		}
	}
	what := describe(k)
	switch {
	case kinds.IsIdentityBan(k) && writes(verb):
		return denied("%s may not %s %s: only administrators ban"+remedy, identity, verb, what)
	case k.Namespace == "":
		return denied("%s may not %s %s: it belongs to no namespace, which takes a role in %q"+remedy, identity, verb, what, everywhere)
	case a.meshWide(k.Namespace):
		return denied("%s may not %s %s: objects of namespace %s hold for the whole mesh, which takes a role in %q"+remedy, identity, verb, what,
			k.Namespace, everywhere)
	default:
		return denied("%s may not %s %s: it has no role with %q in namespace %s"+remedy, identity, verb, what, verb, k.Namespace)
	}
}

// describe names an object, or all objects that a key without a name stands for.
func describe(k object.Key) string {
	switch {
	case k.Name != "":
		return k.String()
	case k.Kind != "" && k.Namespace != "":
		return k.Kind + " objects of namespace " + k.Namespace
	case k.Namespace != "":
		return "objects of namespace " + k.Namespace
	case k.Kind != "":
		return k.Kind + " objects of all namespaces"
	default:
		return "objects of all namespaces"
	}
}

// Anywhere returns nil if an identity may use a verb in at least one namespace.
func (a *Access) Anywhere(identity, verb string) error {
	if err := a.known(identity); err != nil {
		return err
	}
	for _, g := range a.Grants(identity) {
		if slices.Contains(g.Verbs, verb) {
			return nil
		}
	}
	return denied("%s may not %s anything"+remedy, identity, verb)
}

// IsAdmin returns nil for administrators.
func (a *Access) IsAdmin(identity string) error {
	if err := a.known(identity); err != nil {
		return err
	}
	if slices.ContainsFunc(a.Grants(identity), func(g Grant) bool { return g.Role == Admin }) {
		return nil
	}
	return denied("%s is no administrator"+remedy, identity)
}

// meshWide reports whether objects of a namespace apply to other namespaces.
func (a *Access) meshWide(namespace string) bool {
	return namespace == "" || namespace == kinds.MeshNamespace || a.cfg.Root != nil && slices.Contains(a.cfg.Root(), namespace)
}

func writes(verb string) bool {
	return verb != Get && verb != List && verb != Watch
}
