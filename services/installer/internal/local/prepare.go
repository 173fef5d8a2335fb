package local

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/proto/fairlead/contract"

	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/local/ports"
	"fairlead.dev/services/installer/internal/local/tokens"
)

// prepare creates the directories, the token issuer's keys and the tokens, which the processes need when they start.
func (n *Node) prepare() (*tokens.Files, error) {
	l := n.cfg.Layout
	dirs := []string{l.Logs(), filepath.Dir(l.RootCert()), l.CADir(), l.StoreDir()}
	for _, s := range n.cfg.Plan.Services {
		dirs = append(dirs, l.ServiceState(s.Name))
	}
	for _, p := range n.cfg.Plan.Pods {
		if p.Agent != nil {
			dirs = append(dirs, p.Agent.StateDir)
		}
		for _, c := range p.Containers {
			dirs = append(dirs, filepath.Dir(c.Log))
		}
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("run directory: %w", err)
		}
	}
	for _, s := range n.cfg.Plan.Services {
		// A cached certificate of an earlier run has that run's addresses.
		if err := os.Remove(filepath.Join(l.ServiceState(s.Name), svid.CacheFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("run directory: %w", err)
		}
	}
	if err := os.Remove(l.Scale()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	issuer, err := tokens.NewIssuer(plan.Issuer)
	if err != nil {
		return nil, err
	}
	key, err := issuer.KeyPEM()
	if err != nil {
		return nil, err
	}
	jwks, err := issuer.JWKS()
	if err != nil {
		return nil, fmt.Errorf("key set: %w", err)
	}
	if err := errors.Join(fileio.Replace(l.IssuerKey(), key), fileio.Write(l.JWKS(), jwks, 0o644)); err != nil {
		return nil, fmt.Errorf("issuer: %w", err)
	}
	files := tokens.NewFiles(issuer, n.cfg.Clock, n.subjects())
	return files, files.Write()
}

// subjects returns, for each token file, the service account that its token is for.
func (n *Node) subjects() map[string]tokens.Subject {
	files := map[string]tokens.Subject{
		n.cfg.Layout.AdminToken(): {Namespace: contract.SystemNamespace, Account: contract.AdminAccount, Audience: contract.AdminAudience},
	}
	for _, s := range n.cfg.Plan.Services {
		files[s.TokenFile] = tokens.Subject{Namespace: contract.SystemNamespace, Account: s.Account, Audience: contract.TokenAudience}
	}
	for _, p := range n.cfg.Plan.Pods {
		if p.Agent != nil {
			files[p.Agent.TokenFile] = tokens.Subject{Namespace: p.Namespace, Account: p.ServiceAccount, Pod: p.Name,
				Audience: contract.TokenAudience}
		}
	}
	return files
}

// CheckPorts returns an error if another process listens on an address of the plan.
func CheckPorts(p *plan.Plan) error {
	const remedy = "stop it, or choose another range with --loopback-range (auto finds a free one)"
	var errs []error
	byHolder := map[int]bool{} // of each holder, one address is reported
	check := func(addr netip.AddrPort, wantedBy string) {
		err := ports.Check(addr, wantedBy, remedy)
		if busy, ok := errors.AsType[*ports.BusyError](err); ok {
			if byHolder[busy.PID] {
				return
			}
			byHolder[busy.PID] = true
		}
		errs = append(errs, err)
	}
	for _, s := range p.Services {
		check(s.GRPC, s.Name)
		check(s.Ops, s.Name)
	}
	for _, pod := range p.Pods {
		for _, addr := range pod.Listens {
			check(addr, pod.ID())
		}
	}
	const most = 3
	if errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil }); len(errs) > most {
		errs = append(errs[:most], fmt.Errorf("so are addresses of %d more processes", len(errs)-most))
	}
	return errors.Join(errs...)
}

// lastLines returns the end of a log file, for an error message.
func lastLines(name string, count int) string {
	f, err := os.Open(name)
	if err != nil {
		return "(no log)"
	}
	defer f.Close()
	const tail = 8 << 10
	if info, err := f.Stat(); err == nil && info.Size() > tail {
		_, _ = f.Seek(-tail, io.SeekEnd)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return "(no log)"
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	lines = lines[max(0, len(lines)-count):]
	return "  " + strings.Join(lines, "\n  ")
}
