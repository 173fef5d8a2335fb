package memory

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/config-watcher/internal/object"
)

// journal describes a write of several files in progress: prepared files that must be renamed, and files that must be
// deleted. Paths are relative to the store's directory.
type journal struct {
	Rename []rename `json:"rename,omitempty"`
	Delete []string `json:"delete,omitempty"`
}

type rename struct {
	Temp   string `json:"temp"`
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
}

// checksummed is a journal with its checksum.
type checksummed struct {
	SHA256  string          `json:"sha256"`
	Journal json.RawMessage `json:"journal"`
}

func hexSum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func encodeJournal(t *transaction) ([]byte, error) {
	j := journal{Delete: t.del}
	for _, f := range t.put {
		j.Rename = append(j.Rename, rename{Temp: f.temp, Path: f.rel, SHA256: hexSum(f.content)})
	}
	body, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	return json.Marshal(checksummed{SHA256: hexSum(body), Journal: body})
}

var errJournal = errors.New("its checksum is not that of its content")

func decodeJournal(content []byte) (journal, error) {
	var j journal
	var c checksummed
	if err := json.Unmarshal(content, &c); err != nil {
		return j, err
	}
	if c.SHA256 != hexSum(c.Journal) {
		return j, errJournal
	}
	if err := json.Unmarshal(c.Journal, &j); err != nil {
		return j, err
	}
	for _, rel := range j.paths() {
		if !filepath.IsLocal(rel) {
			return j, fmt.Errorf("%q leads out of the directory", rel)
		}
	}
	return j, nil
}

func (j journal) paths() []string {
	out := slices.Clone(j.Delete)
	for _, r := range j.Rename {
		out = append(out, r.Temp, r.Path)
	}
	return out
}

// replay finishes a write that was interrupted after its journal was complete. It renames a damaged journal: the
// objects' own files count then, and a problem names the objects that the journal may have been about.
func (s *Store) replay() (object.Problems, error) {
	path := filepath.Join(s.cfg.Dir, journalName)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var problems object.Problems
	j, err := decodeJournal(content)
	if err == nil {
		problems, err = s.finish(j)
	} else {
		aside := fmt.Sprintf("%s.damaged-%d", path, s.cfg.Clock.Now().UnixNano())
		problems = object.Problems{{
			Location: path, Reason: "journal of an interrupted write is damaged: " + err.Error(),
			Value: object.Quote(strings.Join(mentioned(content), ", ")),
			Remedy: "each object is as its own file has it; look at those named here and apply them again if need be; the journal is kept as " +
				aside,
		}}
		return problems, s.cfg.FS.Rename(path, aside)
	}
	if err != nil {
		return problems, err
	}
	return problems, s.cfg.FS.Remove(path)
}

// finish does the remaining steps of a write.
func (s *Store) finish(j journal) (object.Problems, error) {
	var problems object.Problems
	for _, r := range j.Rename {
		temp, path := filepath.Join(s.cfg.Dir, r.Temp), filepath.Join(s.cfg.Dir, r.Path)
		if content, err := os.ReadFile(temp); err == nil && hexSum(content) == r.SHA256 {
			if err := errors.Join(s.cfg.FS.Rename(temp, path), s.cfg.FS.SyncDir(filepath.Dir(path))); err != nil {
				return nil, err
			}
			continue
		}
		if content, err := os.ReadFile(path); err != nil || hexSum(content) != r.SHA256 {
			problems = append(problems, object.Problem{
				Location: path, Object: keyOf(r.Path).String(),
				Reason: "an interrupted write of it cannot be finished: what was prepared is damaged or gone",
				Remedy: "it is as its own file has it; apply it again if need be",
			})
		}
	}
	for _, rel := range j.Delete {
		if err := s.cfg.FS.Remove(filepath.Join(s.cfg.Dir, rel)); err != nil {
			return nil, err
		}
	}
	return problems, nil
}

// journalPath finds the paths of a journal that does not decode.
var journalPath = regexp.MustCompile(`"path":"([^"]+)"`)

// mentioned lists the objects that a damaged journal names.
func mentioned(content []byte) []string {
	out := lists.Map(journalPath.FindAllSubmatch(content, -1), func(m [][]byte) string { return keyOf(string(m[1])).String() })
	slices.Sort(out)
	return slices.Compact(out)
}
