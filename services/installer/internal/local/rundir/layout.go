// Package rundir is the directory that a running mesh keeps its files in: who may use it, where what is, and
// state.json, by which the other commands of the CLI find the mesh.
package rundir

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
)

// Layout names the files of a run directory. Dir is absolute.
type Layout struct {
	// Dir is the run directory.
	Dir string
	// Sockets is the directory that Pods' agents keep their unix sockets and state in. It is within Dir unless paths
	// there would be too long for a unix socket.
	Sockets string
}

// maxSocketPath is what fits into sockaddr_un with its final zero byte (unix(7)).
const maxSocketPath = 107

// longestSocket is the longest name of a socket in an agent's directory.
const longestSocket = "envoy-admin.sock"

// NewLayout places the files. longestPod is the longest "<pod>.<namespace>" that will run; it decides where the sockets
// go.
func NewLayout(dir, longestPod string) Layout {
	l := Layout{Dir: dir, Sockets: filepath.Join(dir, "pods")}
	if len(filepath.Join(l.Sockets, longestPod, longestSocket)) > maxSocketPath {
		sum := sha256.Sum256([]byte(dir))
		l.Sockets = filepath.Join(os.TempDir(), "fairlead-"+hex.EncodeToString(sum[:6]))
	}
	return l
}

// Lock is held by the running `fairlead up`.
func (l Layout) Lock() string { return filepath.Join(l.Dir, "fairlead.lock") }

// State describes the running mesh to other commands.
func (l Layout) State() string { return filepath.Join(l.Dir, "state.json") }

// Logs holds a file for each process.
func (l Layout) Logs() string { return filepath.Join(l.Dir, "logs") }

// Log is the log file of a process.
func (l Layout) Log(process string) string { return filepath.Join(l.Logs(), process+".log") }

// RootCert is the root of trust that the ca publishes.
func (l Layout) RootCert() string { return filepath.Join(l.Dir, "certs", "root-cert.pem") }

// CADir holds the root key and certificate.
func (l Layout) CADir() string { return filepath.Join(l.Dir, "ca") }

// StoreDir keeps the objects written through ConfigStoreService.
func (l Layout) StoreDir() string { return filepath.Join(l.Dir, "store") }

// ServiceState is the state directory of one service process.
func (l Layout) ServiceState(process string) string {
	return filepath.Join(l.Dir, "services", process)
}

// IssuerKey signs service account tokens.
func (l Layout) IssuerKey() string { return filepath.Join(l.Dir, "issuer", "key.pem") }

// JWKS is the public half of IssuerKey.
func (l Layout) JWKS() string { return filepath.Join(l.Dir, "issuer", "jwks.json") }

// Token is the token file of a service, a Pod or "admin".
func (l Layout) Token(holder string) string { return filepath.Join(l.Dir, "tokens", holder) }

// AdminToken authenticates the CLI.
func (l Layout) AdminToken() string { return l.Token("admin") }

// Agent is the state directory of a Pod's agent.
func (l Layout) Agent(pod string) string { return filepath.Join(l.Sockets, pod) }
