package cabackup

import "time"

// Sealed is an encrypted archive with its Summary, as `ca backup --summary` prints it in JSON for `fairlead ca backup`.
type Sealed struct {
	Summary Summary `json:"summary"`
	Archive []byte  `json:"archive"`
}

// Summary says what is in an archive, without its secrets.
type Summary struct {
	Program     string    `json:"program"`
	Made        time.Time `json:"made"`
	TrustDomain string    `json:"trustDomain"`
	Epoch       uint64    `json:"epoch"`
	Generation  uint64    `json:"generation"`
	// Signer is the name of the one in use, Step that of a rotation.
	Signer string `json:"signer"`
	Step   string `json:"step"`
	// Roots are the SHA-256 of roots in hex.
	Roots []string `json:"roots"`
	// Files is how many there are, Secrets which ones, with that of the record.
	Files   int      `json:"files"`
	Secrets []string `json:"secrets,omitempty"`
	// Elsewhere are sentences on what the ca needs and the archive does not have.
	Elsewhere []string `json:"elsewhere,omitempty"`
}

// Summary returns that of an archive that was encoded or decoded.
func (a *Archive) Summary() Summary {
	s := Summary{Program: a.Program, Made: a.Made, TrustDomain: a.TrustDomain, Files: len(a.Files), Elsewhere: a.Elsewhere}
	if r, err := ParseRecord(a.Record); err == nil {
		s.Epoch, s.Generation, s.Signer, s.Step, s.Roots = r.Epoch, r.Bundle.Generation, r.Current.Name, r.Step, r.Fingerprints()
	}
	if a.In != (Place{}) {
		s.Secrets = append(s.Secrets, a.In.String())
	} else {
		s.Files++
	}
	for _, secret := range a.Secrets {
		s.Secrets = append(s.Secrets, secret.String())
	}
	return s
}
