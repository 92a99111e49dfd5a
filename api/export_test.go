package api

// DecodeStrict lets tests reach the decoder.
var DecodeStrict = decodeStrict
