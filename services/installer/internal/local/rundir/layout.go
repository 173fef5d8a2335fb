// Package rundir is the run directory of a mesh on this machine. Acquire locks it for one `fairlead up`, and Layout
// names its files. `fairlead up` (package local) writes state.json with Write. Other commands read that of a running
// mesh with Open, and that of any mesh with package runstate.
package rundir

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"

	"fairlead.dev/proto/fairlead/runstate"
)

// Layout names the files of a run directory.
type Layout struct {
	// Dir is the absolute path of the run directory.
	Dir string
	// Sockets is the directory of agents' unix sockets and state. It is in Dir unless paths there would be too long for
	// a socket's address.
	Sockets string
}

// maxSocketPath is the longest path that fits into sockaddr_un with its final zero byte (unix(7)).
const maxSocketPath = 107

// longestSocket is the longest name of a socket in an agent's directory.
const longestSocket = "envoy-admin.sock"

// NewLayout returns the layout of a directory. longestPod is the longest "<pod>.<namespace>" that will run; whether its
// sockets fit decides Sockets.
func NewLayout(dir, longestPod string) Layout {
	l := Layout{Dir: dir, Sockets: filepath.Join(dir, "pods")}
	if len(filepath.Join(l.Sockets, longestPod, longestSocket)) > maxSocketPath {
		sum := sha256.Sum256([]byte(dir))
		l.Sockets = filepath.Join(os.TempDir(), "fairlead-"+hex.EncodeToString(sum[:6]))
	}
	return l
}

// Lock is locked by the running `fairlead up`.
func (l Layout) Lock() string { return filepath.Join(l.Dir, "fairlead.lock") }

// State is state.json.
func (l Layout) State() string { return runstate.File(l.Dir) }

// Scale is what `fairlead scale` asks for, see Scales.
func (l Layout) Scale() string { return filepath.Join(l.Dir, "scale.json") }

// Flags is how the mesh was started, see WriteFlags.
func (l Layout) Flags() string { return filepath.Join(l.Dir, "flags.json") }

// Logs is the directory of the log files, one for each process.
func (l Layout) Logs() string { return filepath.Join(l.Dir, "logs") }

// Log is the log file of a process.
func (l Layout) Log(process string) string { return filepath.Join(l.Logs(), process+".log") }

// RootCert is the root certificate that the ca publishes.
func (l Layout) RootCert() string { return filepath.Join(l.Dir, "certs", "root-cert.pem") }

// CADir holds the ca's root key and certificate.
func (l Layout) CADir() string { return filepath.Join(l.Dir, "ca") }

// StoreDir is config-watcher's store of objects written through its API.
func (l Layout) StoreDir() string { return filepath.Join(l.Dir, "store") }

// ServiceState is the state directory of one service process.
func (l Layout) ServiceState(process string) string {
	return filepath.Join(l.Dir, "services", process)
}

// IssuerKey is the key that signs service account tokens.
func (l Layout) IssuerKey() string { return filepath.Join(l.Dir, "issuer", "key.pem") }

// JWKS is the public key of IssuerKey as a JSON Web Key Set.
func (l Layout) JWKS() string { return filepath.Join(l.Dir, "issuer", "jwks.json") }

// Token is the token file of a service, a Pod or "admin".
func (l Layout) Token(holder string) string { return filepath.Join(l.Dir, "tokens", holder) }

// AdminToken is the CLI's token.
func (l Layout) AdminToken() string { return l.Token("admin") }

// Agent is the state directory of a Pod's agent.
func (l Layout) Agent(pod string) string { return filepath.Join(l.Sockets, pod) }
