// Package caapi has the JSON that the ca's operations port and the commands `fairlead ca` exchange: Status is what a
// GET of StatusPath answers, Command what a POST to CommandPath takes. Both need an administrator's token.
package caapi

import "time"

// Pages of the ca's operations port. A command answers the Status after it, 409 if the state does not allow it, and 400
// if the Command is wrong; the JSON of both is {"error": "..."}.
const (
	StatusPath  = "/debug/rotation"
	CommandPath = "/debug/rotation/command"
	// ClustersPath answers RemoteClusters.
	ClustersPath = "/debug/remote-clusters"
)

// MaxListed is how many names a list of Status has at most; the field Total beside it counts all.
const MaxListed = 100

// Status is how the ca stands: its signers, the trust bundle, and a rotation that is under way.
type Status struct {
	// Replica is who answers, Leader who takes the steps; the same without other replicas.
	Replica string `json:"replica"`
	Leader  string `json:"leader,omitempty"`

	TrustDomain string `json:"trustDomain"`
	Epoch       uint64 `json:"epoch"`
	Generation  uint64 `json:"generation"`

	// Step is idle, prepare, trust, gate, issue, renew or retire, since Since. Began and Reason are of the rotation.
	Step        string    `json:"step"`
	Since       time.Time `json:"since"`
	Began       time.Time `json:"began,omitzero"`
	Reason      string    `json:"reason,omitempty"`
	Paused      bool      `json:"paused,omitempty"`
	Compromised bool      `json:"compromised,omitempty"`
	Accepted    []string  `json:"accepted,omitempty"`

	// Waits are sentences on what the step waits for, without holders: those are in Lagging.
	Waits   []string `json:"waits,omitempty"`
	Lagging Lagging  `json:"lagging"`

	// Roots are those of the published bundle, those included that no signer has (--extra-roots-file).
	Roots    []Root    `json:"roots,omitempty"`
	Signers  []Signer  `json:"signers"`
	Holders  Holders   `json:"holders"`
	Replicas []Replica `json:"replicas,omitempty"`
	// Problems are what somebody must mend, each with its remedy.
	Problems []string `json:"problems,omitempty"`
}

// Lagging are those that the step waits for: at gate those that do not trust the next roots, at renew those with a
// certificate of the signer before.
type Lagging struct {
	Total int      `json:"total"`
	First []Holder `json:"first,omitempty"`
}

// Holder is somebody with a certificate that is valid still.
type Holder struct {
	// Name is what --accept takes: namespace/pod, or the identity and the serial number where no Pod is known.
	Name     string    `json:"name"`
	Identity string    `json:"identity"`
	Serial   string    `json:"serial"`
	NotAfter time.Time `json:"notAfter"`
	// Generation is the newest that it has acknowledged, Signer the ID of the one that issued its certificate.
	Generation uint64 `json:"generation"`
	Signer     uint64 `json:"signer"`
}

// Holders counts those with a certificate that is valid still.
type Holders struct {
	Total int `json:"total"`
	// Acknowledged have acknowledged the current generation.
	Acknowledged int `json:"acknowledged"`
	// BySigner counts certificates by the ID of the signer.
	BySigner map[uint64]int `json:"bySigner,omitempty"`
	// UnknownUntil is set while certificates may be in use that no journal has, as after a journal was lost.
	UnknownUntil time.Time `json:"unknownUntil,omitzero"`
	// UnknownReason is why.
	UnknownReason string `json:"unknownReason,omitempty"`
}

// Signer is one that issues, is to issue, or has issued certificates that are in use.
type Signer struct {
	ID   uint64 `json:"id"`
	Name string `json:"name"`
	// Kind is the field of the signer file that is set, such as vault.
	Kind string `json:"kind"`
	// Role is current, next or old.
	Role  string `json:"role"`
	Roots []Root `json:"roots,omitempty"`
	// NotAfter is when the first certificate that leaves need ends.
	NotAfter time.Time `json:"notAfter,omitzero"`
	Problem  string    `json:"problem,omitempty"`
}

// Root is a certificate of the trust bundle.
type Root struct {
	Subject  string    `json:"subject"`
	SHA256   string    `json:"sha256"`
	NotAfter time.Time `json:"notAfter"`
	PEM      string    `json:"pem"`
}

// Replica is one process of the ca.
type Replica struct {
	Name string `json:"name"`
	// Signer is the ID of the one it issues from.
	Signer uint64 `json:"signer"`
	// Seen is when it was last heard of.
	Seen    time.Time `json:"seen"`
	Problem string    `json:"problem,omitempty"`
}

// Actions of a Command.
const (
	// Rotate begins a rotation to new keys and a new root of the current signer; Swap one to the signer in File.
	Rotate = "rotate"
	Swap   = "swap"
	// The others steer the rotation that is under way.
	Pause       = "pause"
	Resume      = "resume"
	Abort       = "abort"
	Rollback    = "rollback"
	Accept      = "accept"
	Compromised = "compromised"
)

// Command is an order of an operator.
type Command struct {
	Action string `json:"action"`
	// File is the content of a signer file (YAML or JSON), for Swap.
	File string `json:"file,omitempty"`
	// Reason is kept and shown; up to 256 bytes.
	Reason string `json:"reason,omitempty"`
	// Holder is a name of Status.Lagging, for Accept.
	Holder string `json:"holder,omitempty"`
	// Compromised may be set with Rotate and Swap.
	Compromised bool `json:"compromised,omitempty"`
}
