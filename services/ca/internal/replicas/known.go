package replicas

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"fairlead.dev/pkg/fileio"
)

// maxKnownBytes bounds the file of known replicas.
const maxKnownBytes = 256 << 10

// known is what is remembered of a replica.
type known struct {
	Heard time.Time `json:"heard"`
	Run   string    `json:"run"`
}

// load reads the file of known replicas: a JSON object by their names.
func load(path string) (map[string]known, error) {
	if path == "" {
		return nil, nil
	}
	text, err := fileio.ReadRegular(path, maxKnownBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the names of the replicas: %w", err)
	}
	var all map[string]known
	if err := json.Unmarshal(text, &all); err != nil || len(all) > maxMembers {
		return nil, fmt.Errorf("%s does not have the names of replicas (%w); remove it, and wait for the lifetime of a certificate before "+
			"a rotation", path, errors.Join(err, errTooMany(all)))
	}
	return all, nil
}

func errTooMany(all map[string]known) error {
	if len(all) > maxMembers {
		return fmt.Errorf("%d of at most %d", len(all), maxMembers)
	}
	return nil
}

func save(path string, all map[string]known) error {
	if path == "" {
		return nil
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return fileio.Replace(path, text)
}
