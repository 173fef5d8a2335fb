// Package identity decides where the workload's key, certificate and roots come from, in the order of Istio's agent:
// the SDS server of another provider on a unix socket (External), files that are mounted (tlsconf.Files), or the ca
// (svid.Manager). Open chooses once, when the agent starts. Whatever the source is, the agent itself serves Envoy from
// it by package sds, so that readiness, metrics and the agent's own connections follow it alike.
package identity

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/trustbundle"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/node"
	"fairlead.dev/services/node-agent/internal/statedir"
)

// Kind says which source was chosen; it is a label of metrics.
type Kind string

// The kinds of sources.
const (
	Socket Kind = "socket"
	Files  Kind = "files"
	CA     Kind = "ca"
)

// Identity is the workload's identity, from one source.
type Identity struct {
	Kind Kind
	// Workload is what Envoy and gRPC programs get: key, certificate, and the roots that peers are verified with.
	Workload *Bundle
	// Source is the chosen one itself: Workload without the further roots, some of which come only later.
	Source tlsconf.Source
	// ControlPlane is for connections to xds-servers: the roots are those of the control plane, and there is a
	// certificate only if the control plane trusts it; without one a token authenticates.
	ControlPlane tlsconf.Source
	// Renew gets a new certificate at once, if the source is the ca.
	Renew func()
	// Mesh are the mesh's roots, which the ca's signed bundle replaces; nil if the source is not the ca, or the
	// configuration asks for no bundle.
	Mesh *trustbundle.Roots
}

// Open chooses the source and adds the tasks that follow it to p.
func Open(c *config.Config, dir *statedir.Dir, p *service.Process) (*Identity, error) {
	s := c.Secrets
	rootFile := c.RootCertFile
	if provisioned := filepath.Join(s.ProvisionedDir, svid.RootsFile); s.ProvisionedDir != "" && !exists(p.Log, rootFile) &&
		exists(p.Log, provisioned) {
		rootFile = provisioned
	}
	out := &Identity{Renew: func() {}}
	var source, roots tlsconf.Source
	var revocations func() [][]byte
	var err error
	set, mounted := mountedFiles(p.Log, s)
	switch {
	case s.SocketRequired || isSocket(p.Log, s.Socket):
		out.Kind = Socket
		var external *External
		if external, err = openExternal(c, p); err != nil {
			return nil, err
		}
		source = external
	case mounted:
		out.Kind = Files
		source = openFiles(set, c, p)
	default:
		out.Kind = CA
		var manager *svid.Manager
		if s.TrustByXDS {
			out.Mesh = openMesh(c, dir, p, rootFile)
			roots, revocations = out.Mesh, out.Mesh.Revocations
		}
		if manager, err = openManager(c, dir, p, svid.Config{RootFile: rootFile, Roots: roots}); err != nil {
			return nil, err
		}
		source, out.Renew = manager, manager.Renew
		if out.Mesh != nil {
			p.Task("tainted authorities", out.Mesh.RenewTainted(manager, manager.Renew))
		}
	}
	out.Source = source
	p.Log.Info("source of the workload's certificate", "source", string(out.Kind))

	if out.Workload, err = newBundle(bundleConfig{
		Source: source, Roots: roots, TrustDomains: s.TrustDomains, Extra: s.ExtraRoots, Anchors: s.Anchors, RevocationsFile: s.RevocationsFile,
		Revocations: revocations, Debounce: s.Debounce, Fetch: fetch.New(fetch.Config{}), Log: p.Log, Clock: p.Clock, Registerer: p.Registry,
	}); err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	p.Task("trust bundle", out.Workload.Run)
	p.Task("expiry of certificates", register(p.Registry, out.Workload, out.Kind, p.Clock).Run)

	planeRoots := s.DiscoveryRootFile
	if planeRoots == "" && out.Kind != CA && exists(p.Log, rootFile) {
		planeRoots = rootFile
	}
	if planeRoots == "" {
		out.ControlPlane = source
		return out, nil
	}
	plane := newControlPlane(source, tlsconf.FilesConfig{RootFile: planeRoots, Debounce: s.Debounce, Clock: p.Clock, Log: p.Log})
	p.Task("roots of the control plane", plane.Run)
	out.ControlPlane = plane
	return out, nil
}

// openExternal makes the client of another provider's SDS server.
func openExternal(c *config.Config, p *service.Process) (*External, error) {
	n, err := node.New(c)
	if err != nil {
		return nil, process.WithExitCode(err, process.ExitRefused)
	}
	external := NewExternal(ExternalConfig{Path: c.Secrets.Socket, Node: n, Log: p.Log, Clock: p.Clock})
	p.Task("external SDS server", external.Run)
	return external, nil
}

// openFiles follows mounted files.
func openFiles(set config.FileSet, c *config.Config, p *service.Process) *tlsconf.Files {
	files := tlsconf.NewFiles(tlsconf.FilesConfig{
		CertFile: set.Chain, KeyFile: set.Key, RootFile: set.Roots, Debounce: c.Secrets.Debounce, Clock: p.Clock, Log: p.Log,
	})
	p.Task("mounted certificate", files.Run)
	return files
}

// openMesh makes the mesh's roots, which begin with those of the file.
func openMesh(c *config.Config, dir *statedir.Dir, p *service.Process, rootFile string) *trustbundle.Roots {
	cfg := trustbundle.Config{RootFile: rootFile, TrustDomain: c.TrustDomain.Name(), Metrics: "fairlead_node_agent", Clock: p.Clock,
		Log: p.Log, Registerer: p.Registry}
	for _, id := range c.CAIDs {
		cfg.CAs = append(cfg.CAs, id.String())
	}
	if c.Secrets.KeepBundle {
		cfg.Path = dir.Path(statedir.Trust)
	}
	roots := trustbundle.New(cfg)
	p.Task("roots of the mesh", roots.Run)
	return roots
}

// openManager makes the client of the ca; roots has where the roots come from.
func openManager(c *config.Config, dir *statedir.Dir, p *service.Process, roots svid.Config) (*svid.Manager, error) {
	id, err := c.Identity()
	if err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	s := c.Secrets
	cfg := svid.Config{
		CAAddress: c.CAAddress, CAIDs: c.CAIDs, CARootFile: s.CARootFile, TokenFile: c.TokenFile, Identity: id,
		RootFile: roots.RootFile, Roots: roots.Roots,
		TTL:            c.SecretTTL,
		ProvisionedDir: s.ProvisionedDir, RestoreDir: c.CertificateDir, Key: s.Key, GraceRatio: s.GraceRatio, GraceJitter: s.GraceJitter,
	}
	if c.CacheCertificate {
		cfg.CacheDir = dir.Path(statedir.Cache)
	}
	return p.Identity(cfg)
}

// mountedFiles returns the first set of files that are all there, or the one that is demanded.
func mountedFiles(log *slog.Logger, s config.Secrets) (config.FileSet, bool) {
	for _, set := range s.Mounted {
		if s.FilesOnly || exists(log, set.Chain) && exists(log, set.Key) && exists(log, set.Roots) {
			return set, true
		}
	}
	return config.FileSet{}, false
}

func exists(log *slog.Logger, path string) bool { return look(log, path) != nil }

func isSocket(log *slog.Logger, path string) bool {
	info := look(log, path)
	return info != nil && info.Mode()&fs.ModeSocket != 0
}

// look returns nil for a path at which nothing is, or that may not be looked at, as below a working directory that is
// another user's. It logs the latter: the file may be there, and is not used.
func look(log *slog.Logger, path string) fs.FileInfo {
	info, err := os.Stat(path)
	if err == nil {
		return info
	}
	if !errors.Is(err, fs.ErrNotExist) {
		log.Warn("a file that the workload's identity may come from cannot be looked at and is not used; let the agent's user search its "+
			"directories",
			"path", path, "error", err)
	}
	return nil
}
