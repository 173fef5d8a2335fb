package rundir

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"fairlead.dev/pkg/fileio"
)

// Scales are the replicas that Deployments, NAMESPACE/NAME, are scaled to; one that is absent runs all that it has.
type Scales map[string]int

// ReadScales reads what `fairlead scale` has asked for.
func ReadScales(file string) (Scales, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return Scales{}, nil
	}
	s := Scales{}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

// WriteScales asks the `fairlead up` of a run directory for them.
func WriteScales(file string, s Scales) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return fileio.Replace(file, append(text, '\n'))
}
