package cacerts

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"fairlead.dev/pkg/fileio"
)

// layout is how the files of a set are called.
type layout struct{ cert, key, chain, roots string }

var (
	// istioLayout is that of Istio's Secrets cacerts and istio-ca-secret.
	istioLayout = layout{"ca-cert.pem", "ca-key.pem", "cert-chain.pem", "root-cert.pem"}
	// tlsLayout is that of Secrets of the type kubernetes.io/tls. Where both are, istiod takes this one too. The chain
	// is in the file of the certificate.
	tlsLayout = layout{"tls.crt", "tls.key", "", "ca.crt"}
)

const (
	crlName = "ca-crl.pem"
	// kubeletLink is the symbolic link to the current version of a volume that the kubelet writes.
	kubeletLink = "..data"
	// maxFile bounds a file of certificates or a key, in bytes: a hundred roots have less.
	maxFile = 256 << 10
	// maxCRL bounds the revocation lists: a Secret has no more.
	maxCRL = 1 << 20
)

// files are the texts of one set. Of optional files that are not there the text is nil.
type files struct {
	layout                  layout
	cert, key, chain, roots []byte
	// crl and crlErr are apart, because the set is good without the lists.
	crl    []byte
	crlErr error
	// unread is true if the directory cannot be read at all.
	unread bool
	// replaced is true if the kubelet has put another version into the place of the one that was read. It removes the
	// files of the old one, which then looks like a set that lacks some.
	replaced bool
}

func (f *files) equal(g *files) bool {
	return f.layout == g.layout && bytes.Equal(f.cert, g.cert) && bytes.Equal(f.key, g.key) && bytes.Equal(f.chain, g.chain) &&
		bytes.Equal(f.roots, g.roots) && bytes.Equal(f.crl, g.crl) && text(f.crlErr) == text(g.crlErr)
}

// attempts bounds how often a set is read that changes all the time.
const attempts = 5

// read reads the set of a directory until two readings are the same, so that it is of one moment. The lists of revoked
// certificates are there even if there is an error.
func read(dir string) (*files, error) {
	last, lastErr := readOnce(dir)
	for range attempts {
		f, err := readOnce(dir)
		if !f.replaced && f.equal(last) && text(err) == text(lastErr) {
			return f, err
		}
		last, lastErr = f, err
	}
	return last, fmt.Errorf("directory %s: the files change while they are read; replace them all at once", dir)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func readOnce(path string) (*files, error) {
	f := &files{layout: istioLayout, unread: true}
	root, err := os.OpenRoot(path)
	if err != nil {
		return f, fmt.Errorf("directory %s: %w; mount the Secret with the CA's certificate and key there, or correct the setting directory",
			path, reason(err))
	}
	defer root.Close()
	d := directory{root: root, path: path}
	// Opened, the version stays the same while the kubelet changes the link.
	version, err := root.OpenRoot(kubeletLink)
	switch {
	case err == nil:
		defer version.Close()
		d.root, d.kubelet = version, true
	case !errors.Is(err, fs.ErrNotExist):
		return f, fmt.Errorf("%s: %w; it must lead to a directory beside it", filepath.Join(path, kubeletLink), reason(err))
	default:
		if err := d.checkMode(); err != nil {
			return f, err
		}
	}
	f.unread = false
	if f.crl, f.crlErr = d.read(crlName, maxCRL, false); errors.Is(f.crlErr, fs.ErrNotExist) {
		f.crlErr = nil
	}
	if _, err := d.root.Lstat(tlsLayout.cert); err == nil {
		f.layout = tlsLayout
	}
	var errs []error
	required := func(name string, private bool) []byte {
		content, err := d.read(name, maxFile, private)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%s: is missing; write it there", filepath.Join(path, name))
		}
		errs = append(errs, err)
		return content
	}
	optional := func(name string) []byte {
		if name == "" {
			return nil
		}
		content, err := d.read(name, maxFile, false)
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		return content
	}
	f.cert, f.key = required(f.layout.cert, false), required(f.layout.key, true)
	f.chain, f.roots = optional(f.layout.chain), optional(f.layout.roots)
	f.replaced = d.kubelet && !d.current(root)
	return f, errors.Join(errs...)
}

// directory is an opened one. Links in it that lead out of it are not followed.
type directory struct {
	root *os.Root
	path string
	// kubelet is true if root is one version of a volume.
	kubelet bool
}

// current reports whether the kubelet's link in root still leads to this version.
func (d directory) current(root *os.Root) bool {
	own, err := d.root.Stat(".")
	if err != nil {
		return false
	}
	linked, err := root.Stat(kubeletLink)
	return err == nil && os.SameFile(own, linked)
}

func (d directory) checkMode() error {
	info, err := d.root.Stat(".")
	if err == nil && info.Mode().Perm()&0o002 != 0 {
		err = fmt.Errorf("directory %s: has mode %04o, so that everybody can put another key there; run: chmod o-w %s", d.path,
			info.Mode().Perm(), d.path)
	}
	return err
}

// read reads a regular file. A file that is not there is fs.ErrNotExist.
func (d directory) read(name string, limit int64, private bool) ([]byte, error) {
	path := filepath.Join(d.path, name)
	f, err := d.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe is not waited for
	if err != nil {
		if info, lstatErr := d.root.Lstat(name); lstatErr == nil && info.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("%s: is a symbolic link that cannot be followed inside of the directory (%w); put the file itself there", path,
				hide(reason(err)))
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w; let the ca read it", path, reason(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w; put a file there", path, fileio.ErrNotRegular)
	}
	if err == nil && !d.kubelet {
		err = checkMode(path, info, private)
	}
	if err != nil {
		return nil, err
	}
	content, err := fileio.ReadAll(f, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; leave in it only what the ca needs", path, err)
	}
	return content, nil
}

// hidden has the text of an error and not its identity.
type hidden struct{ error }

// hide keeps a link to nowhere from counting as a file that is not there.
func hide(err error) error { return hidden{err} }

// checkMode refuses a file that others could replace, and a key that they can read. Group read is how the ca reads a
// key that belongs to another user.
func checkMode(path string, info fs.FileInfo, private bool) error {
	mode := info.Mode().Perm()
	forbidden, wanted := fs.FileMode(0o002), "o-w"
	if private {
		if forbidden, wanted = 0o027, "g-w,o-rwx"; owned(info) {
			forbidden, wanted = 0o077, "go-rwx"
		}
	}
	switch {
	case mode&forbidden == 0:
		return nil
	case private:
		return fmt.Errorf("%s: has mode %04o, so that others than the ca can read or replace the key; run: chmod %s %s (and if that was not "+
			"intended, treat the key as known to others)", path, mode, wanted, path)
	}
	return fmt.Errorf("%s: has mode %04o, so that everybody can replace it; run: chmod %s %s", path, mode, wanted, path)
}

func owned(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// reason is the cause without the path, which the caller has said.
func reason(err error) error {
	if known, ok := errors.AsType[*fs.PathError](err); ok {
		return known.Err
	}
	return err
}
