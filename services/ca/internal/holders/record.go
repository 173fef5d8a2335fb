package holders

import (
	"encoding/binary"
	"hash/crc32"
	"time"
)

// A journal is a header of one line, and records: length and CRC-32C (four bytes each, little endian) of a body, whose
// first byte is its kind.
const (
	recordHeader = 8
	maxRecord    = 8 << 10
)

// Kinds of records.
const (
	kindIssued  = 1
	kindFolded  = 2
	kindUnknown = 3
	// kindOpened has the ID of the machine's boot, and the time at which the journal was begun.
	kindOpened = 4
	// kindClosed ends a journal to which everything was written.
	kindClosed = 5
	// kindUnasked says that other replicas have not told yet whether an earlier journal was lost, kindAsked that they
	// have.
	kindUnasked = 6
	kindAsked   = 7
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// event is one record.
type event struct {
	kind  byte
	cert  Certificate
	fold  fold
	key   foldKey
	until int64  // in seconds
	text  string // why something is unknown, or the boot
}

// appendEvent encodes a record behind b.
func appendEvent(b []byte, e *event) []byte {
	start := len(b)
	b = append(b, make([]byte, recordHeader)...)
	b = append(b, e.kind)
	switch e.kind {
	case kindIssued:
		b = appendCertificate(b, &e.cert)
	case kindFolded:
		b = appendText(b, e.key.identity)
		b = binary.AppendUvarint(b, e.key.signer)
		b = binary.AppendUvarint(b, uint64(e.fold.count))
		b = binary.AppendVarint(b, e.fold.until)
	case kindUnknown, kindOpened:
		b = binary.AppendVarint(b, e.until)
		b = appendText(b, e.text)
	}
	body := b[start+recordHeader:]
	binary.LittleEndian.PutUint32(b[start:], uint32(len(body)))
	binary.LittleEndian.PutUint32(b[start+4:], crc32.Checksum(body, castagnoli))
	return b
}

func appendCertificate(b []byte, c *Certificate) []byte {
	b = append(b, c.Fingerprint[:]...)
	b = append(b, c.Predecessor[:]...)
	undelivered := byte(0)
	if c.Undelivered {
		undelivered = 1
	}
	b = append(b, undelivered)
	for _, s := range []string{c.Serial, c.Identity, c.Pod, c.PodUID, string(c.AuthorityKeyID)} {
		b = appendText(b, s)
	}
	for _, n := range []uint64{c.Signer, c.Epoch, c.Generation} {
		b = binary.AppendUvarint(b, n)
	}
	b = binary.AppendVarint(b, c.NotAfter.Unix())
	return binary.AppendVarint(b, c.At.UnixMilli())
}

func appendText(b []byte, s string) []byte {
	s = s[:min(len(s), maxIdentity)]
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// flaw is what is wrong with a record; "" if nothing is.
type flaw string

const (
	// torn: the journal ends within the record.
	torn flaw = "the journal ends within a record"
	// damaged: there is more after a wrong record.
	damaged flaw = "the journal is damaged"
)

// decodeEvent reads the first record of b and returns how many bytes it has.
func decodeEvent(b []byte) (event, int, flaw) {
	if len(b) < recordHeader {
		return event{}, 0, torn
	}
	length := binary.LittleEndian.Uint32(b)
	if length == 0 || length > maxRecord {
		return event{}, 0, flawOf(b)
	}
	end := recordHeader + int(length)
	if end > len(b) {
		return event{}, 0, torn
	}
	body := b[recordHeader:end]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return event{}, 0, flawOf(b[end:])
	}
	r := reader{rest: body[1:]}
	e := event{kind: body[0]}
	switch e.kind {
	case kindIssued:
		r.certificate(&e.cert)
	case kindFolded:
		e.key.identity, e.key.signer = r.text(), r.unsigned()
		count := r.unsigned()
		if count == 0 || count > 1<<40 {
			r.bad = true
		}
		e.fold = fold{int(count), r.signed()}
	case kindUnknown, kindOpened:
		e.until, e.text = r.signed(), r.text()
	case kindClosed, kindUnasked, kindAsked:
	default:
		r.bad = true
	}
	if r.bad || len(r.rest) > 0 {
		return event{}, 0, damaged
	}
	return e, end, ""
}

// flawOf tells a record that was not written to its end, behind which there is nothing or only zeros, from one that
// somebody or something has changed.
func flawOf(rest []byte) flaw {
	for _, b := range rest {
		if b != 0 {
			return damaged
		}
	}
	return torn
}

// reader reads the fields of a body; bad is set when one is missing.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) bytes(n int) []byte {
	if n > len(r.rest) {
		r.bad, r.rest = true, nil
		return nil
	}
	out := r.rest[:n]
	r.rest = r.rest[n:]
	return out
}

func (r *reader) unsigned() uint64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *reader) signed() int64 {
	n, size := binary.Varint(r.rest)
	if size <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *reader) text() string {
	n := r.unsigned()
	if n > maxIdentity {
		r.bad = true
		return ""
	}
	return string(r.bytes(int(n)))
}

func (r *reader) certificate(c *Certificate) {
	copy(c.Fingerprint[:], r.bytes(len(c.Fingerprint)))
	copy(c.Predecessor[:], r.bytes(len(c.Predecessor)))
	if flag := r.bytes(1); len(flag) == 1 {
		c.Undelivered = flag[0] == 1
		r.bad = r.bad || flag[0] > 1
	}
	c.Serial, c.Identity, c.Pod, c.PodUID = r.text(), r.text(), r.text(), r.text()
	c.AuthorityKeyID = []byte(r.text())
	c.Signer, c.Epoch, c.Generation = r.unsigned(), r.unsigned(), r.unsigned()
	c.NotAfter, c.At = time.Unix(r.signed(), 0).UTC(), time.UnixMilli(r.signed()).UTC()
}
